"""Which products keep their packed weights from call to call.

Comes in: the launches of a region with their code. Goes out: for each launch whose columns' factor
is packed and comes from constants and variables alone that the region does not write, the variables
it depends on. The panels of such a launch have memory of their own; a call packs them again only
where a variable was written since.
"""

from __future__ import annotations

from collections.abc import Sequence

from thalweg.codegen.cache import Loaded
from thalweg.codegen.contraction.form import form_of, loads_of
from thalweg.ir.kernel import Contraction, Kernel
from thalweg.lower.lowered import Launch, Lowered
from thalweg.lower.memory.buffers import Buffer, BufferKind

_MAX_BYTES = 64 << 20  # of all that a region keeps; the rest is packed in every call
_PHASES = 2  # of a product that packs: the first one does


def kept_packing(
    lowered: Lowered, kernels: Sequence[Kernel], loaded: Sequence[Loaded]
) -> dict[int, frozenset[int]]:
    """By launch, the numbers of the references that its packed factor depends on."""
    if lowered.spec.region.early:  # what is signalled belongs to one table of calls
        return {}
    found: dict[int, frozenset[int]] = {}
    variables = _unwritten(lowered)
    room = _MAX_BYTES
    for number, (launch, kernel, code) in enumerate(
        zip(lowered.launches, kernels, loaded, strict=True)
    ):
        if len(code.functions) != _PHASES or code.scratch > room:
            continue
        sources = _sources(launch, kernel)
        if sources is not None and all(b in variables or _is_constant(b) for b in sources):
            found[number] = frozenset(variables[b] for b in sources if b in variables)
            room -= code.scratch
    return found


def _is_constant(buffer: Buffer) -> bool:
    return buffer.kind is BufferKind.CONSTANT


def _unwritten(lowered: Lowered) -> dict[Buffer, int]:
    """The variables that no launch writes, under whatever name: one of the same shape may be the
    same variable."""
    references = [lowered.buffers[tensor] for tensor in lowered.spec.region.references]
    written = {buffer for launch in lowered.launches for buffer in launch.written}
    sizes = {(buffer.dtype, buffer.size) for buffer in references if buffer in written}
    return {
        buffer: number
        for number, buffer in enumerate(references)
        if (buffer.dtype, buffer.size) not in sizes
    }


def _sources(launch: Launch, kernel: Kernel) -> list[Buffer] | None:
    """The buffers that the packed factor is read from; None where that is not known."""
    if not isinstance(kernel, Contraction):
        return None
    factor = form_of(kernel).kernel.b
    read = [load.buffer for load in loads_of(factor.value)]
    places = {id(argument): place for place, argument in enumerate(kernel.arguments)}
    if not all(id(argument) in places for argument in read):
        return None
    return [launch.buffers[places[id(argument)]] for argument in read]
