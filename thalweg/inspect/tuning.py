"""`tf.tune`: finds the best schedules for the contractions of a step by measurement.

Comes in: a session and a step. Goes out: a report to print. The best schedules are stored beside
the compiled kernels and used from then on, in this process and later ones.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thalweg.codegen.kernels import key_of
from thalweg.device.tuning import BUDGET, Tuned, tune_all
from thalweg.graph.likes import FetchLike
from thalweg.inspect.plan_text import clipped, table
from thalweg.inspect.session import InspectedSession
from thalweg.ir.kernel import Contraction
from thalweg.public import public

_HEAD = ("kernel", "iterations", "likely", "best", "gain", "schedule")


@dataclass(frozen=True)
class TuneReport:
    """The results of `tf.tune` for each contraction; `print` it for a table."""

    kernels: Sequence[Tuned]
    seconds: float

    def __str__(self) -> str:
        tried = sum(kernel.tried for kernel in self.kernels)
        count = f"{tried} schedules of {len(self.kernels)} contractions in {self.seconds:.1f} s"
        return "\n".join([*table(_HEAD, map(_cells, self.kernels), left=(0, 5)), count])

    __repr__ = __str__


@public("tune")
def tune(
    session: InspectedSession,
    fetches: FetchLike,
    feed_dict: Mapping[Any, Any] | None = None,
    budget_seconds: float = BUDGET,
) -> TuneReport:
    """Measure other schedules for the contractions of a step, and use the best from now on.

    Everything runs on scratch memory: variables stay as they are. What `session.make_callable`
    returned before keeps its schedules.

    ```
    print(tf.tune(sess, [train, loss], {x: images, y: labels}))
    ```
    """
    start, plan = time.monotonic(), session.plan(fetches, feed_dict)
    contractions = [k for k in plan.kernels if isinstance(k.kernel, Contraction)]
    subjects = {(type(k), key_of(k.kernel)): k.subject for k in contractions}
    results = tune_all(subjects.values(), budget_seconds - (time.monotonic() - start))
    session.forget_plans()  # the next run compiles with the new schedules
    return TuneReport(results, time.monotonic() - start)


def _cells(tuned: Tuned) -> list[str]:
    times = [f"{seconds * 1e3:.3f} ms" for seconds in (tuned.likely, tuned.best)]
    gain = f"{tuned.likely / max(tuned.best, 1e-12):.2f}x"
    name, iterations = clipped(tuned.name), tuned.iterations
    return [name, iterations, *times, gain, tuned.schedule.summary]
