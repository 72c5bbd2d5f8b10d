"""Running the partitions of a step at once: a thread for each, the caller's for the first.

They meet at one rendezvous. The first error of any of them cancels the step, which wakes the
others wherever they wait; when all are back it is raised, once. Partitions in other processes
would differ in the rendezvous alone: keys name the step's tensors and devices, and an abort is a
message.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from thalweg import errors
from thalweg.partition.rendezvous import Rendezvous
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.plan import PartitionPlan

#: (partition, its feeds, the step's rendezvous) -> its fetches
RunOne = Callable[[PartitionPlan, list[Any], Rendezvous], list[Any]]


def run_partitions(
    partitions: Sequence[PartitionPlan],
    feeds: Sequence[Any],
    cancellation: Cancellation,
    run_one: RunOne,
) -> list[Any]:
    """The fetched values of a step on several devices."""
    rendezvous = Rendezvous()
    undo = cancellation.on_cancel(lambda: _abort(rendezvous, cancellation))
    try:
        return _Run(partitions, feeds, cancellation, rendezvous, run_one).run()
    finally:
        undo()


def _abort(rendezvous: Rendezvous, cancellation: Cancellation) -> None:
    if cancellation.error is not None:
        rendezvous.abort(cancellation.error)


class _Run:
    """One step: what its partitions gave, and the first error."""

    def __init__(
        self,
        partitions: Sequence[PartitionPlan],
        feeds: Sequence[Any],
        cancellation: Cancellation,
        rendezvous: Rendezvous,
        run_one: RunOne,
    ) -> None:
        self._partitions, self._feeds = partitions, feeds
        self._cancellation, self._rendezvous = cancellation, rendezvous
        self._run_one = run_one
        self._errors: list[BaseException] = []
        self._fetched: dict[int, Any] = {}

    def run(self) -> list[Any]:
        first, *others = self._partitions
        threads = [self._start(each) for each in others]
        self._run_here(first)
        for thread in threads:
            self._join(thread)
        if self._errors:
            raise self._errors[0]
        return [self._fetched[place] for place in range(len(self._fetched))]

    def _start(self, partition: PartitionPlan) -> threading.Thread:
        name = f"thalweg-step {partition.device.name}"
        thread = threading.Thread(target=self._run_here, args=(partition,), name=name, daemon=True)
        thread.start()
        return thread

    def _run_here(self, partition: PartitionPlan) -> None:
        """Run one partition; its error is everyone's."""
        try:
            values = self._run_one(partition, partition.feeds(self._feeds), self._rendezvous)
        except BaseException as error:  # carried to the caller's thread
            self._fail(error)
        else:
            places = [place for place, _ in partition.partition.fetches]
            self._fetched.update(zip(places, values, strict=True))

    def _join(self, thread: threading.Thread) -> None:
        """Wait for a partition; an interrupt meanwhile stops all, and they end."""
        while thread.is_alive():
            try:
                thread.join()
            except BaseException as error:
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._errors.append(error)
        reason = error if isinstance(error, errors.OpError) else None
        self._cancellation.cancel(
            reason or errors.CancelledError(None, None, "another partition of the step failed")
        )
