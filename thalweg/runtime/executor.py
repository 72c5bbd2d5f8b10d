"""Running a plan: kernels in order on the caller's thread, errors bound to the node that failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from thalweg import errors
from thalweg.graph.node import Node
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.plan import Instruction, Plan, value_of
from thalweg.runtime.resources import Resources

Resource = TypeVar("Resource")

#: What an exception inside a kernel becomes when it is not one of ours already.
_TRANSLATED: tuple[tuple[type[BaseException], type[errors.OpError]], ...] = (
    (MemoryError, errors.ResourceExhaustedError),
    (NotImplementedError, errors.UnimplementedError),
    (StopIteration, errors.OutOfRangeError),
    (ValueError, errors.InvalidArgumentError),
    (TypeError, errors.InvalidArgumentError),
    (ArithmeticError, errors.InvalidArgumentError),
    (LookupError, errors.InvalidArgumentError),
)


@dataclass(slots=True)
class Context:
    """The step as a kernel sees it (see `thalweg.ops.context`)."""

    node: Node
    resources: Resources
    cancellation: Cancellation

    def resource(self, name: str, container: str, make: Callable[[], Resource]) -> Resource:
        """The object kept under (container, name), made on first use."""
        return self.resources.get(name, container, make)

    def delete_resource(self, name: str, container: str) -> bool:
        """Forget an object; whether there was one."""
        return self.resources.delete(name, container)

    def state(self, make: Callable[[], Resource]) -> Resource:
        """This node's own object in this session, made on first use."""
        return self.resources.state(self.node, make)


class Timed(NamedTuple):
    """One node of a traced step: when it began and ended in nanoseconds, where, and its values."""

    node: Node
    start: int
    end: int
    device: str
    outputs: list[tuple[Any, tuple[int, ...], int]]  # dtype, shape and bytes of each


class Timing(list[Timed]):
    """What a traced step records."""


def execute(
    plan: Plan,
    feeds: Sequence[Any],
    resources: Resources,
    cancellation: Cancellation,
    timing: Timing | None = None,
) -> list[Any]:
    """Run a plan and return the fetched values, fresh: nothing in them is shared with state."""
    slots: list[Any] = [None] * plan.slot_count
    for slot, value in zip(plan.feeds, feeds, strict=True):
        slots[slot] = value
    with np.errstate(all="ignore"):
        if timing is None:
            run(plan.instructions, slots, resources, cancellation)
        else:
            run_traced(plan, slots, resources, cancellation, timing)
        return [_fetched(slots[slot], slot, plan) for slot in plan.fetches]


def run(
    instructions: Sequence[Instruction],
    slots: list[Any],
    resources: Resources,
    cancellation: Cancellation,
) -> None:
    """Run instructions over slots."""
    for instruction in instructions:
        call, takes_context, inputs, references, output, count, frees, node = instruction
        try:
            if cancellation.error is not None:
                raise cancellation.error
            values = [slots[slot] for slot in inputs]
            for position in references:
                values[position] = values[position].read()
            if takes_context:
                result = call(Context(node, resources, cancellation), *values)
            else:
                result = call(*values)
            if count == 1 and not isinstance(result, list | tuple):
                slots[output] = result
            else:
                slots[output : output + count] = _flat(result, count, node)
        except Exception as error:
            raise located(error, node) from error
        for slot in frees:
            slots[slot] = None


def run_traced(
    plan: Plan,
    slots: list[Any],
    resources: Resources,
    cancellation: Cancellation,
    timing: Timing,
) -> None:
    """Run instructions one by one and note when each began and ended, and what it gave."""
    for instruction in plan.instructions:
        start = time.perf_counter_ns()
        run((instruction._replace(frees=()),), slots, resources, cancellation)
        end = time.perf_counter_ns()
        first, node = instruction.output, instruction.node
        given = slots[first : first + instruction.output_count]
        device = plan.placement[node]
        timing.append(Timed(node, start, end, device, [_described(value) for value in given]))
        for slot in instruction.frees:
            slots[slot] = None


def _described(value: Any) -> tuple[Any, tuple[int, ...], int]:
    """The dtype, shape and bytes of a value; a reference has none of its own."""
    if not isinstance(value, np.ndarray | np.generic):
        return None, (), 0
    array = np.asarray(cast("Any", value))
    return array.dtype, array.shape, array.nbytes


def _flat(result: Any, count: int, node: Node) -> list[Any]:
    """The outputs of a kernel that has several, lists among them opened up."""
    flat: list[Any] = []
    for part in cast("Sequence[Any]", result):
        if isinstance(part, list):
            flat += part
        else:
            flat.append(part)
    if len(flat) != count:
        raise errors.InternalError(
            None, None, f"kernel of {node.type} gave {len(flat)} outputs, not {count}"
        )
    return flat


def _fetched(item: Any, slot: int, plan: Plan) -> Any:
    """What a fetched slot holds; a variable that cannot be read fails at its own node."""
    try:
        return fresh(item)
    except errors.OpError as error:
        (node,) = (
            i.node for i in plan.instructions if i.output <= slot < i.output + i.output_count
        )
        raise located(error, node) from error


def fresh(item: Any) -> Any:
    """A fetched value the caller may keep and write to. State and feeds are read-only views."""
    value = value_of(item)
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, Any]", value)
        if not array.flags.writeable or array.base is not None:
            array = array.copy()
        return array if array.ndim else array[()]
    return value


def located(error: Exception, node: Node) -> errors.OpError:
    """An error of ours, bound to the node it happened in."""
    if isinstance(error, errors.OpError):
        return error if error.op is not None else error.at(node)
    for kind, ours in _TRANSLATED:
        if isinstance(error, kind):
            return ours(None, node, _message(error))
    return errors.UnknownError(None, node, _message(error))


def _message(error: Exception) -> str:
    return str(error) or type(error).__name__
