"""Running a plan whose nodes may wait for each other: by readiness, not in order.

A step with nodes that block (taking from an accumulator or a queue) must let the others go on: one
of them may be what is waited for, in this step or in another. The caller's thread runs whatever is
ready; a node that may block runs on a thread of its own unless nothing else is left to do. What a
partition receives from another one needs no thread: it is done when it arrives.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from queue import SimpleQueue

import numpy as np

from thalweg import errors
from thalweg.partition.transfers import Recv, RecvToken
from thalweg.runtime.calls import Instruction
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.plan import Plan

Done = tuple[int, BaseException | None]
#: (instruction, what to call with an error or None when it is done)
Receive = Callable[[Instruction, Callable[[BaseException | None], None]], None]


def run_by_readiness(
    plan: Plan,
    call: Callable[[Instruction], None],
    cancellation: Cancellation,
    receive: Receive | None = None,
) -> None:
    """Call all instructions of a plan; the first error cancels the others and is raised."""
    _Step(plan, call, cancellation, receive).run()


class _Step:
    """One run: which instructions are ready, and which are out on threads."""

    def __init__(
        self,
        plan: Plan,
        call: Callable[[Instruction], None],
        cancellation: Cancellation,
        receive: Receive | None,
    ) -> None:
        self._instructions = plan.instructions
        self._call_one = call
        self._receive = receive
        self._cancellation = cancellation
        waits, self._followers = plan.dependencies
        self._waits = list(waits)
        self._ready = [index for index, count in enumerate(waits) if count == 0]
        self._blocked: list[int] = []  # ready, but may block
        self._out = 0
        self._done: SimpleQueue[Done] = SimpleQueue()
        self._error: BaseException | None = None

    def run(self) -> None:
        heapq.heapify(self._ready)  # the earliest first: the order a plain run would take
        while self._ready or self._blocked or self._out:
            if self._error is None and self._ready:
                self._advance(heapq.heappop(self._ready))
            elif self._error is None and self._blocked:
                self._release()
            elif self._out:
                self._await()
            else:
                break
        if self._error is not None:
            raise self._error

    def _await(self) -> None:
        """Wait for what is out; an interrupt meanwhile is the step's error."""
        try:
            done = self._done.get()
        except BaseException as error:
            self._fail(error)
        else:
            self._finish(*done)

    def _advance(self, index: int) -> None:
        op = self._instructions[index].node.op
        if self._receive is not None and isinstance(op, Recv | RecvToken):
            self._out += 1
            self._receive(self._instructions[index], lambda error: self._done.put((index, error)))
        elif op.blocking:
            self._blocked.append(index)
        else:
            self._finish(*self._call(index))

    def _release(self) -> None:
        """Everything left may block: all go out on threads, the only one stays here."""
        blocked, self._blocked = self._blocked, []
        if len(blocked) == 1 and not self._out:
            self._finish(*self._call(blocked[0]))
            return
        for index in blocked:
            self._out += 1
            name = f"thalweg-step {self._instructions[index].node.name}"
            args = (index,)
            threading.Thread(target=self._call_outside, args=args, name=name, daemon=True).start()

    def _call(self, index: int) -> Done:
        try:
            self._call_one(self._instructions[index])
        except BaseException as error:  # carried to the caller's thread, also a KeyboardInterrupt
            return index, error
        return index, None

    def _call_outside(self, index: int) -> None:
        with np.errstate(all="ignore"):  # a thread has its own
            self._done.put(self._call(index))

    def _finish(self, index: int, error: BaseException | None) -> None:
        if self._out and self._instructions[index].node.op.blocking:
            self._out -= 1
        if error is not None:
            self._fail(error)
            return
        for follower in self._followers[index]:
            self._waits[follower] -= 1
            if self._waits[follower] == 0:
                heapq.heappush(self._ready, follower)

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
        reason = error if isinstance(error, errors.OpError) else None
        self._cancellation.cancel(
            reason or errors.CancelledError(None, None, "another node of the step failed")
        )
