"""Calling kernels: instructions over slots, errors bound to the node that failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from thalweg import errors
from thalweg.graph.node import Node
from thalweg.ops.core.context import Allocate
from thalweg.partition.rendezvous import Rendezvous
from thalweg.runtime.calls import Instruction
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.resources import Resources

Resource = TypeVar("Resource")
_SEVERAL = (list, tuple)  # a union would be rebuilt for each instruction

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
    """The step as a kernel sees it (see `thalweg.ops.core.context`)."""

    node: Node
    resources: Resources
    cancellation: Cancellation
    rendezvous: Rendezvous | None = None  # of a step with several partitions

    @property
    def allocate(self) -> Allocate:
        """How the step's device allocates memory."""
        return self.resources.allocate

    def resource(self, name: str, container: str, make: Callable[[], Resource]) -> Resource:
        """The object kept under (container, name), made on first use."""
        return self.resources.get(name, container, make)

    def delete_resource(self, name: str, container: str) -> bool:
        """Forget an object; whether there was one."""
        return self.resources.delete(name, container)

    def at(self, node: Node, device: str = "") -> Context:
        """The same step, as another node sees it, on this device or another."""
        resources = self.resources.on(device) if device else self.resources
        return Context(node, resources, self.cancellation, self.rendezvous)

    def run(self, instructions: Sequence[Instruction], slots: list[Any]) -> None:
        """Run more instructions of the step."""
        run(instructions, slots, self.resources, self.cancellation)

    def state(self, make: Callable[[], Resource]) -> Resource:
        """This node's own object in this session, made on first use."""
        return self.resources.state(self.node.original, make)


def run(
    instructions: Sequence[Instruction],
    slots: list[Any],
    resources: Resources,
    cancellation: Cancellation,
) -> None:
    """Run instructions over slots."""
    for instruction in instructions:
        call, takes_context, inputs, references, output, count, frees, node, _ = instruction
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
            if count == 1 and not isinstance(result, _SEVERAL):
                slots[output] = result
            else:
                slots[output : output + count] = outputs_of(result, count, node)
        except Exception as error:
            raise located(error, node) from error
        for slot in frees:
            slots[slot] = None


def outputs_of(result: Any, count: int, node: Node) -> list[Any]:
    """The outputs of a kernel, lists among them opened up."""
    if count == 1 and not isinstance(result, _SEVERAL):
        return [result]
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


def located(error: Exception, node: Node) -> errors.OpError:
    """An error of ours, bound to the node it happened in."""
    node = node.original
    if isinstance(error, errors.OpError):
        return error if error.op is not None else error.at(node)
    for kind, ours in _TRANSLATED:
        if isinstance(error, kind):
            return ours(None, node, _message(error))
    return errors.UnknownError(None, node, _message(error))


def _message(error: Exception) -> str:
    return str(error) or type(error).__name__
