"""Prepacking: contractions that reuse their packed column factor from call to call.

Comes in: the launches of a region with their code. Goes out: for each launch whose packed factor
depends only on constants and on variables that the region does not write, the variables among
them. The panels of such a launch have memory of their own; they are packed again only after a
variable was written.
"""

from __future__ import annotations

from collections.abc import Sequence

from thalweg.codegen.cache import Loaded
from thalweg.codegen.contraction.form import form_of, loads_of
from thalweg.ir.kernel import Contraction, Kernel
from thalweg.lower.lowered import Lowered
from thalweg.lower.memory.buffers import Buffer, BufferKind

_MAX_BYTES = 64 << 20  # of the panels of a region; other launches pack in every call
_PHASES = 2  # of a contraction that packs: the first one packs


def prepacked_launches(
    lowered: Lowered, kernels: Sequence[Kernel], loaded: Sequence[Loaded]
) -> dict[int, frozenset[int]]:
    """By launch, the numbers of the references that its packed factor depends on."""
    prepacked: dict[int, frozenset[int]] = {}
    variables = _unwritten_variables(lowered)
    bytes_left = _MAX_BYTES
    launches = zip(lowered.launches, kernels, loaded, strict=True)
    for number, (launch, kernel, code) in enumerate(launches):
        if not isinstance(kernel, Contraction) or len(code.functions) != _PHASES:
            continue
        loads = loads_of(form_of(kernel).kernel.b.value)
        sources: list[Buffer] = [launch.buffers[load.buffer.position] for load in loads]
        is_fixed = all(b in variables or b.kind is BufferKind.CONSTANT for b in sources)
        if is_fixed and code.scratch <= bytes_left:
            prepacked[number] = frozenset(variables[b] for b in sources if b in variables)
            bytes_left -= code.scratch
    return prepacked


def _unwritten_variables(lowered: Lowered) -> dict[Buffer, int]:
    """The references that no launch writes, by buffer. Two references may be of one variable, so
    one with the dtype and size of a written one does not count."""
    references = [lowered.buffers[tensor] for tensor in lowered.spec.region.references]
    written = {buffer for launch in lowered.launches for buffer in launch.written}
    written_sizes = {(buffer.dtype, buffer.size) for buffer in references if buffer in written}
    return {
        buffer: number
        for number, buffer in enumerate(references)
        if (buffer.dtype, buffer.size) not in written_sizes
    }
