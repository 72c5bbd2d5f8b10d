"""The user's line: where in a program something was made.

Frames of this package are passed over, and those of `with` blocks. What is kept of a frame is its
code and the offset of its instruction; the number of the line is decoded when someone asks.
"""

from __future__ import annotations

import contextlib
import os
from sys import _getframe  # pyright: ignore[reportPrivateUsage] - the documented way to walk frames cheaply
from types import CodeType

from thalweg.platform.notebook import location

MadeAt = tuple[CodeType, int]

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_NOT_THE_USER = (_PACKAGE, contextlib.__file__)


def user_frame(depth: int = 0) -> MadeAt:
    """The innermost frame that is the user's, so far up from the caller or more."""
    frame = _getframe(depth + 1)
    while is_passed_over[frame.f_code.co_filename] and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


class _PassedOver(dict[str, bool]):
    """For each file that was met, whether its frames are not the user's: a dictionary lookup
    is quicker than a call, and there is one for every frame below every op."""

    def __missing__(self, file: str) -> bool:
        self[file] = passed = file.startswith(_NOT_THE_USER)
        return passed


is_passed_over = _PassedOver()


def line_of(code: CodeType, lasti: int) -> int:
    """The line of an instruction."""
    positions = list(code.co_positions())
    return positions[lasti // 2][0] or code.co_firstlineno


def user_place() -> tuple[str, int]:
    """The file and the line of the user's code that is running now."""
    code, lasti = user_frame(1)
    return code.co_filename, line_of(code, lasti)


def user_line() -> str:
    """The user's line that is running now, as text, for errors before there is a node."""
    return location(*user_place())
