"""Kernel calls: the function that computes a unit of a step, and the attribution of its errors.

A node or a region becomes a `Call`. In a plan it is an `Instruction` over slots, in a token graph a
vertex. Errors are attributed to the node that failed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

from thalweg import errors
from thalweg.graph.node import Node, Tensor
from thalweg.lower.specialise import Region
from thalweg.ops.core.context import Allocate, VariableCell
from thalweg.partition.rendezvous import Rendezvous
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.compiled import Backend, Executable, RemoteDevice, host_arrays
from thalweg.runtime.resources import Resources
from thalweg.runtime.sending import SendingExecutable

Resource = TypeVar("Resource")
_SEQUENCES = (list, tuple)  # a constant: a union would be built for each instruction

#: Exception types of kernels -> the OpError that is raised instead.
_OP_ERRORS: tuple[tuple[type[BaseException], type[errors.OpError]], ...] = (
    (MemoryError, errors.ResourceExhaustedError),
    (NotImplementedError, errors.UnimplementedError),
    (StopIteration, errors.OutOfRangeError),
    (ValueError, errors.InvalidArgumentError),
    (TypeError, errors.InvalidArgumentError),
    (ArithmeticError, errors.InvalidArgumentError),
    (LookupError, errors.InvalidArgumentError),
    (Exception, errors.UnknownError),
)


class Call(NamedTuple):
    """A kernel function and the nodes it computes."""

    function: Callable[..., Any]
    takes_context: bool
    references: tuple[int, ...]  # positions of inputs that are variables to be read first
    node: Node  # that errors are attributed to
    nodes: tuple[Node, ...]  # all nodes that it computes
    device: str = ""  # the device whose state it uses, if the step has several
    #: it returns at once; its first argument is a callback for (value, error)
    is_async: bool = False


class Instruction(NamedTuple):
    """One kernel call: the slots of its inputs and outputs, and the slots to free after it."""

    call: Callable[..., Any]  # the first five fields are those of Call
    takes_context: bool
    references: tuple[int, ...]
    node: Node
    nodes: tuple[Node, ...]
    inputs: tuple[int, ...]
    output: int
    output_count: int
    frees: tuple[int, ...]


class TracedFunction(partial[Any]):
    """A kernel function that records its calls: an op that could be started is called instead."""


def call_of(unit: Node | Region, fed: Collection[Tensor], backend: Backend) -> Call:
    """The call that runs a node on its NumPy kernel, or a region as compiled code."""
    device = backend.device_of(unit if isinstance(unit, Node) else unit.nodes[-1])
    if isinstance(device, RemoteDevice):
        return device.call(unit)
    converts = backend.has_accelerator and device.is_host
    if isinstance(unit, Region):
        kind = SendingExecutable if unit.sends else Executable
        function = kind(unit, device, backend.fallback, converts)
        is_local = unit.sends or not unit.references or not backend.reaches_elsewhere()
        called = function if is_local else _converting(function, local_cells)
        return Call(called, True, (), unit.nodes[-1], (*unit.nodes, *unit.sends))
    takes_context = unit.op.has("kernel")
    references = dereferenced(unit, fed)
    function = unit.op.kernel if takes_context else unit.op.numpy
    kernel = _grouped(unit, function, int(takes_context))
    if backend.has_accelerator and not unit.op.takes_buffers:
        kernel = _converting(kernel, host_arrays)
    return Call(kernel, takes_context, references, unit, (unit,))


class ForeignCell(ABC):
    """A variable of another process."""

    @abstractmethod
    def read(self) -> Any:
        """The current value."""

    @abstractmethod
    def local(self) -> VariableCell:
        """A read-only copy in this process, with the current value."""


def temporary_cell(tensor: Tensor, value: Any) -> VariableCell:
    """A variable with a value, in place of the one that a tensor refers to."""
    cell = VariableCell(tensor.op.name, tensor.dtype.base_dtype, tensor.shape)
    cell.assign(value)
    return cell


def _converting(
    function: Callable[..., Any], convert: Callable[[Iterable[Any]], list[Any]]
) -> Callable[..., Any]:
    """A wrapper of a function that converts its arguments first."""

    def call(*values: Any) -> Any:
        return function(*convert(values))

    return call


def local_cells(values: Iterable[Any]) -> list[Any]:
    """The values, with local copies of variables of other processes."""
    return [value.local() if isinstance(value, ForeignCell) else value for value in values]


def starter_of(call: Call) -> Callable[..., None] | None:
    """A function (context, done, *inputs) that starts a blocking call; None if its op has none, or
    if calls are recorded."""
    node, op = call.node, call.node.op
    if isinstance(call.function, TracedFunction) or not op.has("start") or not op.can_start:
        return None
    start = _grouped(node, op.start, 2)

    def begin(context: Any, done: Callable[..., None], *inputs: Any) -> None:
        def finish(value: Any, error: BaseException | None) -> None:
            done(value, located(error, node) if isinstance(error, Exception) else error)

        arguments = host_arrays(inputs)
        for position in call.references:
            arguments[position] = inputs[position].read()
        start(context, finish, *arguments)

    return begin


def _grouped(node: Node, function: Callable[..., Any], before: int) -> Callable[..., Any]:
    """A kernel that takes lists, wrapped to take flat inputs after `before` other arguments."""
    if not node.op.parsed.has_lists:
        return function
    positions = range(before + len(node.inputs))
    grouped = node.grouped(positions[before:])
    selectors: list[Any] = [*positions[:before], *map(_selector, grouped)]

    def call(*flat: Any) -> Any:
        return function(*[flat[at] if type(at) is int else list(flat[at]) for at in selectors])

    return call


def _selector(grouped: Any) -> int | slice:
    """The position of an input among the flat arguments: an index, or a slice for a list."""
    if isinstance(grouped, int):
        return grouped
    return slice(grouped[0], grouped[-1] + 1) if grouped else slice(0, 0)


def dereferenced(node: Node, fed: Collection[Tensor]) -> tuple[int, ...]:
    """Positions of references where the op takes values; a fed tensor is a value already."""
    if not any(tensor.dtype.is_ref_dtype for tensor in node.inputs):
        return ()
    pairs = zip(node.inputs, node.takes_references(), strict=True)
    return tuple(
        position
        for position, (tensor, wanted) in enumerate(pairs)
        if tensor.dtype.is_ref_dtype and not wanted and tensor not in fed
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
        """The object with this container and name, created by `make` on first use."""
        return self.resources.get(name, container, make)

    def delete_resource(self, name: str, container: str) -> bool:
        """Delete an object; returns whether there was one."""
        return self.resources.delete(name, container)

    def at(self, node: Node, device: str = "") -> Context:
        """The context of another node of the step, on this device or another one."""
        resources = self.resources.on(device) if device else self.resources
        return Context(node, resources, self.cancellation, self.rendezvous)

    def run(self, instructions: Sequence[Instruction], slots: list[Any]) -> None:
        """Run more instructions of the step."""
        run(instructions, slots, self.resources, self.cancellation)

    def state(self, make: Callable[[], Resource]) -> Resource:
        """This node's object in this session, created by `make` on first use."""
        return self.resources.state(self.node.original, make)


def run(
    instructions: Sequence[Instruction],
    slots: list[Any],
    resources: Resources,
    cancellation: Cancellation,
) -> None:
    """Run instructions over slots."""
    for instruction in instructions:
        call, takes_context, references, node, _, inputs, output, count, frees = instruction
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
            if count == 1 and not isinstance(result, _SEQUENCES):
                slots[output] = result
            else:
                slots[output : output + count] = outputs_of(result, count, node)
        except Exception as error:
            raise_at(error, node)
        for slot in frees:
            slots[slot] = None


def outputs_of(result: Any, count: int, node: Node) -> list[Any]:
    """The outputs of a kernel, with lists flattened."""
    if count == 1 and not isinstance(result, _SEQUENCES):
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


def raise_at(error: Exception, node: Node) -> NoReturn:
    """Raise an error as an OpError of a node; an OpError is not chained to itself."""
    op_error = located(error, node)
    if isinstance(error, errors.OpError):
        raise op_error
    raise op_error from error


def located(error: Exception, node: Node) -> errors.OpError:
    """The error as an OpError that is attributed to a node."""
    node = node.original
    if isinstance(error, errors.OpError):
        return error if error.op is not None else error.at(node)
    op_error_type = next(made for kind, made in _OP_ERRORS if isinstance(error, kind))
    return op_error_type(None, node, str(error) or type(error).__name__)
