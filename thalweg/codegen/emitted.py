"""What a code generator gives: LLVM text with one function for each phase of a kernel."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Emitted:
    """A kernel as LLVM text.

    `functions` run one after the other on all threads, with a barrier between; `scratch` is the
    memory in bytes that a call needs besides its arguments.
    """

    functions: tuple[str, ...]
    text: str
    scratch: int = 0
