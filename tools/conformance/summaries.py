"""Stand-ins for the helpers of tf.contrib.testing that tests of summaries use."""

import glob
import os
from collections import defaultdict
from typing import Any

import thalweg as tf


def latest_events(folder: str) -> list[Any]:
    """The events of the newest event file of a folder."""
    files = sorted(glob.glob(os.path.join(folder, "*events*")), key=os.path.getmtime)
    return list(tf.train.summary_iterator(files[-1])) if files else []


def latest_summaries(folder: str) -> list[Any]:
    """The events with summaries of the newest event file of a folder."""
    return [event for event in latest_events(folder) if event.HasField("summary")]


class FakeSummaryWriter:
    """Keeps what a FileWriter would write."""

    _replaced: Any = None

    def __init__(self, logdir: str, graph: Any = None) -> None:
        self.logdir, self.graph = logdir, graph
        self.summaries: dict[int, list[Any]] = defaultdict(list)
        self.graphs = [] if graph is None else [graph]
        self.meta_graphs: list[Any] = []
        self.session_logs: dict[Any, list[Any]] = defaultdict(list)

    @classmethod
    def install(cls) -> None:
        cls._replaced = tf.summary.FileWriterCache.get
        fakes: dict[str, FakeSummaryWriter] = {}
        tf.summary.FileWriterCache.get = staticmethod(lambda d: fakes.setdefault(d, cls(d)))

    @classmethod
    def uninstall(cls) -> None:
        tf.summary.FileWriterCache.get = cls._replaced

    def add_summary(self, summary: Any, step: int) -> None:
        proto = tf.Summary.FromString(summary) if isinstance(summary, bytes) else summary
        self.summaries[step].append(proto)

    def add_graph(self, graph: Any, step: Any = None) -> None:
        self.graphs.append(graph)

    def add_meta_graph(self, meta_graph: Any, step: Any = None) -> None:
        self.meta_graphs.append(meta_graph)

    def add_session_log(self, log: Any, step: Any = None) -> None:
        self.session_logs[step].append(log)

    def flush(self) -> None: ...
    def close(self) -> None: ...
    def reopen(self) -> None: ...

    def assert_summaries(
        self,
        test_case: Any,
        expected_logdir: Any = None,
        expected_graph: Any = None,
        expected_summaries: Any = None,
        expected_added_graphs: Any = None,
        expected_added_meta_graphs: Any = None,
        expected_session_logs: Any = None,
    ) -> None:
        if expected_logdir is not None:
            test_case.assertEqual(expected_logdir, self.logdir)
        if expected_graph is not None:
            test_case.assertIs(expected_graph, self.graph)
        for step, expected in (expected_summaries or {}).items():
            found = {v.tag: v.simple_value for s in self.summaries[step] for v in s.value}
            for tag, value in expected.items():
                test_case.assertAlmostEqual(value, found[tag])
        if expected_summaries:
            test_case.assertEqual(
                set(expected_summaries), {k for k, v in self.summaries.items() if v}
            )
        if expected_added_meta_graphs is not None:
            test_case.assertEqual(len(expected_added_meta_graphs), len(self.meta_graphs))
