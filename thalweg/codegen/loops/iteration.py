"""Loop bodies made of several kernels, as they are given to the generator."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.ir.kernel import Loops


@dataclass(frozen=True)
class Iteration:
    """Kernels that together are one iteration of a loop. They repeat while a byte that one of them
    writes is not zero, at most `max_iterations` times in one call.

    Their argument words are concatenated. Arguments are identified by the number of their memory,
    which several kernels may share.
    """

    kernels: tuple[Loops, ...]
    word_starts: tuple[int, ...]  # where each kernel's words begin
    memory: tuple[tuple[int, ...], ...]  # of each kernel's arguments
    overlapping: frozenset[int]  # memory that may alias other memory
    condition: int  # the memory whose first byte is the loop condition
    max_iterations: int
