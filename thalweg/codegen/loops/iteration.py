"""Kernels that repeat themselves, as a generator is asked for them."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.ir.kernel import Loops


@dataclass(frozen=True)
class Iteration:
    """Kernels that are one iteration of a loop: they run again as long as a byte that one of them
    wrote is not zero, but not more often than `most` times in one call.

    Their argument words lie one after the other. An argument is known by its memory, which several
    of them may have in common.
    """

    kernels: tuple[Loops, ...]
    word_starts: tuple[int, ...]  # the place of each kernel's words among all
    memory: tuple[tuple[int, ...], ...]  # the numbers of each kernel's arguments
    overlapping: frozenset[int]  # memory that other memory may be part of
    condition: int  # the memory with the byte
    max_iterations: int
