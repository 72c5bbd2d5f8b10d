"""Emitted kernels, LLVM text with one function per phase, and requests for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

#: The LLVM passes that a module needs. "loops": loop rotation and instruction combining.
#: "iterations": the full function pipeline, which may replace whole loops by their results.
#: "tiles": none, the text is already scheduled.
Passes = Literal["loops", "iterations", "tiles"]


@dataclass(frozen=True)
class Emitted:
    """A kernel as LLVM text.

    `functions` are its phases: each runs on all threads, with a barrier between phases. `scratch`
    is the memory in bytes that a call needs besides its arguments.
    """

    functions: tuple[str, ...]
    text: str
    scratch: int = 0
    passes: Passes = "loops"


@dataclass(frozen=True)
class Request:
    """A request for a kernel: a key that determines its code, and how to emit it.

    `cost` estimates the seconds to emit and compile it, `passes` are those of its module. `explain`
    turns an error of `make` into the one that the user sees.
    """

    key: str
    make: Callable[[], Emitted]
    cost: float = 0.01
    passes: Passes = "loops"
    explain: Callable[[Exception], Exception] = lambda error: error
