"""Origins: the line of the user's program that created a node.

Frames of this package and of `contextlib` are skipped. Of a frame, only its code object and
instruction offset are kept; the line number is decoded on demand.
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
    """The innermost frame of user code, `depth` or more calls above the caller."""
    frame = _getframe(depth + 1)
    while is_passed_over[frame.f_code.co_filename] and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


class _SkippedFiles(dict[str, bool]):
    """File -> whether its frames are skipped. A dictionary, since a lookup is faster than a call,
    and there is one for every frame above every new node."""

    def __missing__(self, file: str) -> bool:
        self[file] = is_skipped = file.startswith(_NOT_THE_USER)
        return is_skipped


is_passed_over = _SkippedFiles()


def file_and_line(made_at: MadeAt) -> tuple[str, int]:
    """The file and line number of an instruction."""
    code, lasti = made_at
    positions = list(code.co_positions())
    return code.co_filename, positions[lasti // 2][0] or code.co_firstlineno


def user_location() -> tuple[str, int]:
    """The file and line number of the user's code that is running."""
    return file_and_line(user_frame(1))


def user_line() -> str:
    """The line of the user's code that is running, as text, for errors before a node exists."""
    return location(*user_location())
