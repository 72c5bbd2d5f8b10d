"""`tf.test.Benchmark`: classes whose `benchmark*` methods measure and report.

Subclasses are known by being defined; `run_benchmarks` runs those that a regular expression names.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from thalweg import protos
from thalweg.graph.context import Runner
from thalweg.graph.likes import FetchLike, Structure
from thalweg.inspect.timeline import Timeline
from thalweg.public import public


@public("test.Benchmark")
class Benchmark:
    """The base of benchmarks: methods named `benchmark...` are run, and report.

    Example:
        >>> class Sums(tf.test.Benchmark):
        ...     def benchmark_one(self):
        ...         pass
        >>> callable(Sums().benchmark_one)
        True
    """

    kinds: ClassVar[list[type[Benchmark]]] = []

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        Benchmark.kinds.append(cls)

    def report_benchmark(
        self,
        iters: int | None = None,
        cpu_time: float | None = None,
        wall_time: float | None = None,
        throughput: float | None = None,
        extras: Mapping[str, Any] | None = None,
        name: str | None = None,
        metrics: list[Mapping[str, Any]] | None = None,
    ) -> None:
        """Print one measurement as a line of JSON."""
        entry = {
            "name": name or self._caller(),
            "iters": iters,
            "cpu_time": cpu_time,
            "wall_time": wall_time,
            "throughput": throughput,
            "extras": None if extras is None else dict(extras),
            "metrics": metrics,
        }
        print(json.dumps({key: value for key, value in entry.items() if value is not None}))

    def _caller(self) -> str:
        """The benchmark method that reports."""
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage] - the documented way to walk frames
        while frame is not None:
            if frame.f_code.co_name.startswith("benchmark"):
                return f"{type(self).__name__}.{frame.f_code.co_name}"
            frame = frame.f_back
        return type(self).__name__

    def run_op_benchmark(
        self,
        sess: Runner,
        op_or_tensor: FetchLike,
        feed_dict: Mapping[Any, Any] | None = None,
        burn_iters: int = 2,
        min_iters: int = 10,
        store_trace: bool = False,
        store_memory_usage: bool = True,
        name: str | None = None,
        extras: Mapping[str, Any] | None = None,
        mbs: float = 0,
    ) -> dict[str, Any]:
        """Run a step again and again; report and return the median of its time."""
        for _ in range(burn_iters):
            sess.run(op_or_tensor, feed_dict)
        seconds = [_timed(lambda: sess.run(op_or_tensor, feed_dict)) for _ in range(min_iters)]
        more = dict(extras or {})
        if store_trace:
            more["full_trace_chrome_format"] = _traced(sess, op_or_tensor, feed_dict)
        result: dict[str, Any] = {
            "iters": min_iters,
            "wall_time": float(np.median(seconds)) if seconds else -1.0,
            "extras": more,
            "name": name or self._caller(),
        }
        if mbs and seconds:
            result["throughput"] = mbs / result["wall_time"]
        self.report_benchmark(**result)
        return result

    def evaluate(self, tensors: Structure) -> Structure:
        """The value of a tensor in the default session."""
        return tensors.eval()


def _timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _traced(sess: Any, fetches: Any, feed_dict: Mapping[Any, Any] | None) -> str:
    metadata = protos.RunMetadata()
    options = protos.RunOptions(trace_level=protos.RunOptions.FULL_TRACE)
    sess.run(fetches, feed_dict, options, metadata)
    return Timeline(metadata.step_stats).generate_chrome_trace_format()


def run_benchmarks(pattern: str) -> None:
    """Run all benchmark methods whose `Class.method` name the regular expression finds."""
    wanted = re.compile(".*" if pattern == "all" else pattern)
    for kind in Benchmark.kinds:
        for method in sorted(name for name in dir(kind) if name.startswith("benchmark")):
            if wanted.search(f"{kind.__name__}.{method}"):
                getattr(kind(), method)()
