"""Printed tracebacks without the package's own frames: what is left are the user's lines.

When an error reaches the top of a program, or of a cell of a notebook, the frames of this package
are left out of what is printed, as are those of libraries that it called; the user's functions that
it called stay. Errors that happened wholly inside, on the way to one that is shown, are left out
too. The exceptions themselves are as they were when printing is over: debuggers, loggers and tests
see every frame.

`THALWEG_FULL_TRACEBACK=1` or `tf.debugging.disable_traceback_filtering()` shows all frames. A
program with an exception hook of its own keeps it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from thalweg.platform import notebook
from thalweg.public import public

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STANDARD = (os.path.dirname(os.__file__) + os.sep, "<frozen ")
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\](\w*)")
_DEPENDENCIES = {"numpy", "ml_dtypes", "llvmlite", "google"}

_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


# Which frames are shown


def is_shown(files: Iterable[str]) -> Iterator[bool]:
    """For the files of frames, outermost first: whether each is the user's or called by theirs."""
    inside = False
    for file in files:
        inside = file.startswith(_PACKAGE) or (inside and _is_dependency(file))
        yield not inside


def _is_dependency(file: str) -> bool:
    installed = _INSTALLED.search(file)
    return file.startswith(_STANDARD) if installed is None else installed[1] in _DEPENDENCIES


@contextmanager
def trimmed(error: BaseException) -> Generator[int]:
    """An error, and those that it came from, without hidden frames; gives how many those are."""
    errors = list(_chain(error))
    before = [(e.__traceback__, e.__cause__, e.__context__, e.__suppress_context__) for e in errors]
    try:
        yield _trim(errors)
    finally:
        for each, (frames, cause, context, suppressed) in zip(errors, before, strict=True):
            each.__traceback__, each.__cause__, each.__context__ = frames, cause, context
            each.__suppress_context__ = suppressed  # last: to set a cause sets this as well


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and all that are printed with it, each once."""
    waiting, seen = [error], set[int]()
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += getattr(each, "exceptions", ())  # of a group
            waiting += [each.__context__, each.__cause__]


def _trim(errors: list[BaseException]) -> int:
    """Take hidden frames off errors, and errors that have no other frames out of their chain."""
    hidden, inner = 0, set[int]()
    for error in errors:
        frames = list(_frames(error.__traceback__))
        shown = list(is_shown(frame.tb_frame.f_code.co_filename for frame in frames))
        if any(shown):
            hidden += shown.count(False)
            error.__traceback__ = _linked(f for f, keep in zip(frames, shown, strict=True) if keep)
        elif frames:
            inner.add(id(error))
    for place, error in enumerate(errors):
        _relink(error, inner, {id(each) for each in errors[: place + 1]})
    return hidden


def _relink(error: BaseException, inner: set[int], printed: set[int]) -> None:
    """Link an error to the next ones of its chain that are shown, and to none in a circle."""
    suppressed = error.__suppress_context__
    links = [_outer(each, inner) for each in (error.__cause__, error.__context__)]
    error.__cause__, error.__context__ = (None if id(each) in printed else each for each in links)
    error.__suppress_context__ = suppressed


def _outer(error: BaseException | None, inner: set[int]) -> BaseException | None:
    passed: set[int] = set()
    while error is not None and id(error) in inner - passed:
        passed.add(id(error))
        hides = error.__cause__ is not None or error.__suppress_context__
        error = error.__cause__ if hides else error.__context__
    return None if id(error) in passed else error


def _frames(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _linked(frames: Iterable[TracebackType]) -> TracebackType | None:
    """A traceback of some frames of another."""
    linked: TracebackType | None = None
    for each in reversed(list(frames)):
        linked = TracebackType(linked, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return linked


def _note(hidden: int) -> str:
    return f"({hidden} frames inside thalweg are not shown: THALWEG_FULL_TRACEBACK=1 shows them)"


# Where errors are printed


class _Installed:
    """The hooks that are in place, and what they replaced."""

    python: _Hook | None = None
    previous: _Hook = sys.__excepthook__
    printer: Any = None  # IPython's


@public("debugging.enable_traceback_filtering")
def enable_traceback_filtering() -> None:
    """Leave Thalweg's own frames out of printed tracebacks, as an import of it does.

    Works for scripts and notebooks; a program that has set `sys.excepthook` keeps its own.
    """
    shell = notebook.shell()
    if shell is not None:
        _enable_in(shell.InteractiveTB)
    elif sys.excepthook is sys.__excepthook__:
        _Installed.previous, _Installed.python = sys.excepthook, _print
        sys.excepthook = _print


@public("debugging.disable_traceback_filtering")
def disable_traceback_filtering() -> None:
    """Print tracebacks whole again, in this process."""
    if sys.excepthook is _Installed.python:
        sys.excepthook = _Installed.previous
    _Installed.python = None
    if _Installed.printer is not None:
        del _Installed.printer.structured_traceback  # what is left is the class's own
        _Installed.printer = None


@public("debugging.is_traceback_filtering_enabled")
def is_traceback_filtering_enabled() -> bool:
    """Whether printed tracebacks leave out Thalweg's own frames."""
    is_placed = _Installed.printer is not None or sys.excepthook is _Installed.python
    return is_placed and not _wants_all()


def _wants_all() -> bool:
    return os.environ.get("THALWEG_FULL_TRACEBACK", "0") not in ("", "0")


def _print(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """`sys.excepthook`: prints as the one before it, of fewer frames."""
    if _wants_all():
        _Installed.previous(kind, error, traceback)
        return
    with trimmed(error) as hidden:
        _Installed.previous(kind, error, error.__traceback__)
    if hidden and sys.stderr is not None:
        print(_note(hidden), file=sys.stderr)


def _enable_in(printer: Any) -> None:
    """Have IPython's printer of tracebacks print fewer frames, whatever its mode."""
    if _Installed.printer is not None:
        return
    whole = printer.structured_traceback

    def structured_traceback(
        etype: Any = None, evalue: Any = None, etb: Any = None, *options: Any, **more: Any
    ) -> list[str]:
        if _wants_all() or not isinstance(evalue, BaseException) or etb is None:
            return whole(etype, evalue, etb, *options, **more)
        with trimmed(evalue) as hidden:
            lines = whole(etype, evalue, evalue.__traceback__, *options, **more)
        return [*lines, _note(hidden)] if hidden else lines

    printer.structured_traceback = structured_traceback
    _Installed.printer = printer
