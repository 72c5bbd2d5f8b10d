"""What a code generator gives, LLVM text with one function for each phase of a kernel, and the
order for it: the kernel's key, and how to make it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

#: What a module wants of LLVM before machine code is made of it. "loops" are simple, and brought
#: into the form that machine code is best made of. "iterations" run again and again: what all of
#: them together come to may be found, too. "tiles" are written as they are to run.
Passes = Literal["loops", "iterations", "tiles"]


@dataclass(frozen=True)
class Emitted:
    """A kernel as LLVM text.

    `functions` run one after the other on all threads, with a barrier between; `scratch` is the
    memory in bytes that a call needs besides its arguments.
    """

    functions: tuple[str, ...]
    text: str
    scratch: int = 0
    passes: Passes = "loops"


def unexplained(error: Exception) -> Exception:
    """An error as it is."""
    return error


@dataclass(frozen=True)
class Request:
    """A kernel that is wanted: a key that stands for its code, and how to make it.

    `cost` is about what making and compiling it takes, in seconds, and `passes` what it will want
    of LLVM; `explain` gives the error that the user sees for one of `make`.
    """

    key: str
    make: Callable[[], Emitted]
    cost: float = 0.01
    passes: Passes = "loops"
    explain: Callable[[Exception], Exception] = unexplained
