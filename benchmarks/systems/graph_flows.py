"""Works that move data in the TensorFlow 1.x API: `tf` is Thalweg or TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import flows
import numpy as np

from systems.step import Step


def make(tf: Any, kind: str, config: Any) -> Step:
    """A step of a work that moves data, in the default graph."""
    makers: dict[str, Callable[[Any, Any], Step]] = {
        "queue-scalar": scalar_queue,
        "queue-megabyte": large_queue,
        "pipeline": pipeline,
        "pipeline-rows": partial(pipeline, kind="pipeline-rows"),
        "save": save,
        "save-synced": partial(save, synced=True),
        "restore": restore,
        "records": records,
    }
    return makers[kind](tf, config)


def scalar_queue(tf: Any, config: Any) -> Step:
    """A scalar is fed to an enqueue step and fetched by a dequeue step."""
    queue = tf.FIFOQueue(10, [tf.float32], shapes=[[]])
    value = tf.placeholder(tf.float32, [])
    session = tf.Session(config=config)
    put = session.make_callable(queue.enqueue(value), [value])
    take = session.make_callable(queue.dequeue())

    def step(i: int) -> Any:
        put(np.float32(i % 7))
        return take()

    return Step(step)


def large_queue(tf: Any, config: Any) -> Step:
    """Tensors of a megabyte, computed and enqueued by steps, are dequeued as one batch."""
    start = flows.item()
    queue = tf.FIFOQueue(flows.ITEMS, [tf.float32], shapes=[start.shape])
    variable = tf.Variable(start)
    session = tf.Session(config=config)
    session.run(tf.global_variables_initializer())
    put = session.make_callable(queue.enqueue(variable + 1.0))
    take = session.make_callable(queue.dequeue_many(flows.ITEMS))

    def step(i: int) -> Any:
        for _ in range(flows.ITEMS):
            put()
        return take()[:, ::4096]

    return Step(step)


def dataset(tf: Any, kind: str = "pipeline") -> Any:
    """Records mapped, batched and prefetched."""

    def changed(features: Any) -> Any:
        return features * 2.0 + 1.0 if kind == "pipeline" else features / tf.reduce_max(features)

    data = tf.data.Dataset.from_tensor_slices(flows.records())
    data = data.map(lambda features, label: (changed(features), label))
    return data.batch(flows.BATCH).prefetch(flows.AHEAD)


def pipeline(tf: Any, config: Any, kind: str = "pipeline") -> Step:
    """A pass over the records, each batch fetched by a step."""
    iterator = tf.data.make_initializable_iterator(dataset(tf, kind))
    session = tf.Session(config=config)
    take = session.make_callable(iterator.get_next())

    def batches() -> Iterator[Any]:
        session.run(iterator.initializer)
        try:
            while True:
                yield take()
        except tf.errors.OutOfRangeError:
            return

    return Step(lambda i: flows.digest(batches()))


def saved_variables(tf: Any, config: Any) -> tuple[Any, Any]:
    """A session with a gigabyte of variables, and its saver."""
    values = flows.tensors()
    given = tf.placeholder(tf.float32, [flows.EACH])
    variables = [tf.Variable(given, name=name) for name in values]
    session = tf.Session(config=config)
    for variable, value in zip(variables, values.values(), strict=True):
        session.run(variable.initializer, {given: value})
    return session, tf.train.Saver(variables)


def written(session: Any, saver: Any) -> list[Path]:
    """Save the variables; the files."""
    prefix = str(flows.folder() / "model")
    with session.graph.as_default():
        saver.save(session, prefix, write_meta_graph=False, write_state=False)
    return list(flows.folder().glob("model.*"))


def save(tf: Any, config: Any, synced: bool = False) -> Step:
    """A checkpoint is written; what was written is read back once, when the steps are checked."""
    session, saver = saved_variables(tf, config)
    is_ours = tf.__name__ == "thalweg"

    def step(i: int) -> Any:
        files = written(session, saver)
        if synced and not is_ours:
            flows.sync(files)
        return checked(i)

    def checked(i: int) -> Any:
        if i > 1:
            return None
        reader = tf.train.NewCheckpointReader(str(flows.folder() / "model"))
        return flows.sampled(reader.get_tensor(f"weights{n}") for n in range(flows.TENSORS))

    return Step(step, settle=os.sync)


def restore(tf: Any, config: Any) -> Step:
    """The variables get the values of a checkpoint, whose files are in the page cache."""
    session, saver = saved_variables(tf, config)
    files = written(session, saver)
    look = session.make_callable([v[:: flows.EACH // 2] for v in tf.global_variables()])

    def step(i: int) -> Any:
        with session.graph.as_default():
            saver.restore(session, str(flows.folder() / "model"))
        return np.array(look()) if i < 2 else None

    def settle() -> None:
        os.sync()
        for path in files:
            path.read_bytes()

    return Step(step, settle=settle)


def records(tf: Any, config: Any) -> Step:
    """A pass over a TFRecord file, which a writer of the same system wrote."""
    path = str(flows.folder() / "examples")
    with tf.io.TFRecordWriter(path) as writer:
        flows.write_records(writer)
    return Step(lambda i: flows.digest_records(tf.io.tf_record_iterator(path)))
