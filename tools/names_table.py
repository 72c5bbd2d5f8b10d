"""Writes docs/names.md: which public names of TensorFlow 1.x that programs use are here.

    python tools/names_table.py SYMBOLS.csv [docs/names.md]

The CSV ranks names by the number of public files that use them (`symbol,files,repos,status`).
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import thalweg as tf

MISSING = object()
MIN_FILES = 3
LEFT_OUT = ("tf.contrib", "tf.keras", "tf.estimator", "tf.feature_column", "tf.tpu")

#: Whole parts of the system that are planned and not here yet, by what their names start with.
PLANNED = {
    "control flow": (
        "tf.cond tf.case tf.while_loop tf.map_fn tf.scan tf.foldl tf.foldr tf.TensorArray "
        "tf.nn.dynamic_rnn tf.nn.bidirectional_dynamic_rnn tf.nn.raw_rnn tf.function "
        "tf.enable_eager_execution tf.GradientTape tf.executing_eagerly tf.nn.seq2seq"
    ),
    "queues, pipelines, checkpoints, summaries": (
        "tf.data tf.train.Saver tf.train.latest_checkpoint tf.train.get_checkpoint_state "
        "tf.summary tf.train.Coordinator tf.train.start_queue_runners "
        "tf.train.QueueRunner tf.train.queue_runner tf.train.string_input_producer "
        "tf.train.slice_input_producer tf.train.range_input_producer "
        "tf.train.input_producer tf.train.batch tf.train.shuffle_batch "
        "tf.train.limit_epochs tf.train.maybe tf.train.match_filenames_once "
        "tf.train.import_meta_graph tf.train.export_meta_graph "
        "tf.train.NewCheckpointReader tf.train.checkpoint_exists tf.train.list_variables "
        "tf.train.load tf.train.init_from_checkpoint tf.train.Example tf.train.Feature "
        "tf.train.Int64List tf.train.BytesList tf.train.FloatList "
        "tf.train.SequenceExample tf.train.SummaryWriter tf.train.Supervisor "
        "tf.train.Monitored tf.train.Scaffold tf.train.SessionRun tf.train.SessionManager "
        "tf.train.StopAtStepHook tf.train.CheckpointSaverHook tf.train.SummarySaverHook "
        "tf.train.LoggingTensorHook tf.train.NanTensorHook tf.train.StepCounterHook "
        "tf.train.ProfilerHook tf.train.Checkpoint tf.train.FeedFnHook "
        "tf.train.FinalOpsHook tf.train.GlobalStepWaiterHook tf.train.SaverDef "
        "tf.train.SingularMonitoredSession tf.train.ChiefSessionCreator "
        "tf.train.WorkerSessionCreator tf.train.SecondOrStepTimer "
        "tf.train.summary_iterator tf.train.update_checkpoint_state tf.train.LooperThread "
        "tf.train.basic_train_loop tf.train.CheckpointSaverListener "
        "tf.train.generate_checkpoint_state_proto tf.train.add_queue_runner "
        "tf.train.get_checkpoint_mtimes tf.FIFOQueue tf.RandomShuffleQueue "
        "tf.PaddingFIFOQueue tf.PriorityQueue tf.QueueBase tf.TFRecordReader "
        "tf.WholeFileReader tf.TextLineReader tf.FixedLengthRecordReader "
        "tf.IdentityReader tf.ReaderBase tf.python_io tf.parse_ tf.io tf.FixedLenFeature "
        "tf.VarLenFeature tf.FixedLenSequenceFeature tf.SparseFeature tf.decode_csv "
        "tf.read_file tf.write_file tf.matching_files tf.Summary tf.Event "
        "tf.scalar_summary tf.histogram_summary tf.image_summary tf.audio_summary "
        "tf.merge_summary tf.merge_all_summaries tf.saved_model "
        "tf.graph_util.convert_variables_to_constants tf.SummaryMetadata "
        "tf.HistogramProto tf.SessionLog tf.decode_json_example tf.MetaGraphDef "
        "tf.profiler tf.train.BytesList"
    ),
    "cluster": (
        "tf.train.Server tf.train.ClusterSpec tf.train.ClusterDef "
        "tf.train.SyncReplicasOptimizer tf.train.replica_device_setter tf.train.ServerDef "
        "tf.train.JobDef tf.distribute tf.train.do_quantize"
    ),
}


def resolve(symbol: str) -> Any:
    """The object a dotted name means, or MISSING."""
    found: Any = tf
    for part in symbol.split(".")[1:]:
        found = getattr(found, part, MISSING)
    return found


def planned(symbol: str) -> str | None:
    """The planned part that owns a name, if one does."""
    for part, prefixes in PLANNED.items():
        if any(symbol == p or symbol.startswith(p) for p in prefixes.split()):
            return part
    return None


def state(symbol: str) -> str:
    """`present`, the planned part that owns the name, or `missing`."""
    if resolve(symbol) is not MISSING:
        return "present"
    return planned(symbol) or "missing"


def main(symbols: str, target: str) -> None:
    """Write the table and print the counts."""
    with open(symbols) as source:
        rows = [r for r in csv.DictReader(source) if int(r["files"]) >= MIN_FILES]
    rows = [r for r in rows if not r["symbol"].startswith(LEFT_OUT)]
    states = {r["symbol"]: state(r["symbol"]) for r in rows}
    counts = Counter(states.values())
    lines = [
        "# Public names of TensorFlow 1.x\n",
        f"The {len(rows)} names that at least {MIN_FILES} public programs use, most used first "
        "(contrib, keras, estimator, feature columns and TPU left out). Generated by "
        "`tools/names_table.py`.\n",
        ", ".join(f"{count} {kind}" for kind, count in counts.most_common()) + ".\n",
        "| name | programs | here |",
        "|---|---|---|",
    ]
    lines += [f"| `{r['symbol']}` | {r['files']} | {states[r['symbol']]} |" for r in rows]
    Path(target).write_text("\n".join(lines) + "\n")
    print(f"{target}: {dict(counts)}")
    print("missing:", ", ".join(name for name, found in states.items() if found == "missing"))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "docs/names.md")
