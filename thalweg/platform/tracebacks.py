"""Filtered tracebacks: printed errors show only the user's frames.

When an error reaches the top of a program or of a notebook cell, the frames of this package and of
libraries that it called are not printed; the user's functions that it called are. Chained errors
with no user frame are left out too. The exceptions are restored after printing: debuggers, loggers
and tests see every frame.

`THALWEG_FULL_TRACEBACK=1` or `tf.debugging.disable_traceback_filtering()` shows all frames. An
exception hook of the program's own is kept.
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
    """For the files of frames, outermost first, whether each frame is shown."""
    inside = False
    for file in files:
        inside = file.startswith(_PACKAGE) or (inside and _is_dependency(file))
        yield not inside


def _is_dependency(file: str) -> bool:
    installed = _INSTALLED.search(file)
    return file.startswith(_STANDARD) if installed is None else installed[1] in _DEPENDENCIES


@contextmanager
def trimmed(error: BaseException) -> Generator[int]:
    """Remove the hidden frames of an error and its chain inside the block; the value is their
    number."""
    errors = list(_chain(error))
    saved = [(e.__traceback__, e.__cause__, e.__context__, e.__suppress_context__) for e in errors]
    try:
        yield _trim(errors)
    finally:
        for linked, (frames, cause, context, suppressed) in zip(errors, saved, strict=True):
            linked.__traceback__, linked.__cause__, linked.__context__ = frames, cause, context
            linked.__suppress_context__ = suppressed  # last, since setting a cause sets this too


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and all errors that are printed with it, each once."""
    pending, seen = [error], set[int]()
    while pending:
        current = pending.pop()
        if current is not None and id(current) not in seen:
            seen.add(id(current))
            yield current
            pending += getattr(current, "exceptions", ())  # of an exception group
            pending += [current.__context__, current.__cause__]


def _trim(errors: list[BaseException]) -> int:
    """Remove hidden frames, and unlink errors whose frames are all hidden; returns how many frames
    were removed."""
    hidden, inner = 0, set[int]()
    for error in errors:
        frames = list(_frames(error.__traceback__))
        shown = list(is_shown(frame.tb_frame.f_code.co_filename for frame in frames))
        if any(shown):
            hidden += shown.count(False)
            error.__traceback__ = _linked(f for f, keep in zip(frames, shown, strict=True) if keep)
        elif frames:
            inner.add(id(error))
    printed: set[int] = set()
    for error in errors:
        printed.add(id(error))
        _relink(error, inner, printed)
    return hidden


def _relink(error: BaseException, inner: set[int], printed: set[int]) -> None:
    """Link an error to the next shown errors of its chain, without cycles."""
    suppressed = error.__suppress_context__
    links = [_next_shown(link, inner) for link in (error.__cause__, error.__context__)]
    error.__cause__, error.__context__ = (None if id(link) in printed else link for link in links)
    error.__suppress_context__ = suppressed


def _next_shown(error: BaseException | None, inner: set[int]) -> BaseException | None:
    """The first error of a chain that is not among the inner ones."""
    visited: set[int] = set()
    while error is not None and id(error) in inner - visited:
        visited.add(id(error))
        has_cause = error.__cause__ is not None or error.__suppress_context__
        error = error.__cause__ if has_cause else error.__context__
    return None if id(error) in visited else error


def _frames(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _linked(frames: Iterable[TracebackType]) -> TracebackType | None:
    """A new traceback with these frames."""
    linked: TracebackType | None = None
    for frame in reversed(list(frames)):
        linked = TracebackType(linked, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return linked


def _note(hidden: int) -> str:
    return f"({hidden} frames inside thalweg are not shown: THALWEG_FULL_TRACEBACK=1 shows them)"


# Exception hooks


class _Installed:
    """The installed hooks, and the ones they replaced."""

    python: _Hook | None = None
    previous: _Hook = sys.__excepthook__
    printer: Any = None  # IPython's


@public("debugging.enable_traceback_filtering")
def enable_traceback_filtering() -> None:
    """Leave Thalweg's own frames out of printed tracebacks, which an import of it enables.

    This works for scripts and notebooks; a `sys.excepthook` of the program's own is kept.
    """
    shell = notebook.shell()
    if shell is not None:
        _enable_in(shell.InteractiveTB)
    elif sys.excepthook is sys.__excepthook__:
        _Installed.previous, _Installed.python = sys.excepthook, _print
        sys.excepthook = _print


@public("debugging.disable_traceback_filtering")
def disable_traceback_filtering() -> None:
    """Print all frames of tracebacks again, in this process."""
    if sys.excepthook is _Installed.python:
        sys.excepthook = _Installed.previous
    _Installed.python = None
    if _Installed.printer is not None:
        del _Installed.printer.structured_traceback  # which uncovers the method of the class
        _Installed.printer = None


@public("debugging.is_traceback_filtering_enabled")
def is_traceback_filtering_enabled() -> bool:
    """Whether printed tracebacks leave out Thalweg's own frames."""
    is_installed = _Installed.printer is not None or sys.excepthook is _Installed.python
    return is_installed and not _shows_all()


def _shows_all() -> bool:
    return os.environ.get("THALWEG_FULL_TRACEBACK", "0") not in ("", "0")


def _print(
    error_type: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """The `sys.excepthook`: calls the previous hook on the filtered error."""
    if _shows_all():
        _Installed.previous(error_type, error, traceback)
        return
    with trimmed(error) as hidden:
        _Installed.previous(error_type, error, error.__traceback__)
    if hidden and sys.stderr is not None:
        print(_note(hidden), file=sys.stderr)


def _enable_in(printer: Any) -> None:
    """Filter the tracebacks of IPython's printer, in all its modes."""
    if _Installed.printer is not None:
        return
    unfiltered = printer.structured_traceback

    def structured_traceback(
        etype: Any = None, evalue: Any = None, etb: Any = None, *options: Any, **more: Any
    ) -> list[str]:
        if _shows_all() or not isinstance(evalue, BaseException) or etb is None:
            return unfiltered(etype, evalue, etb, *options, **more)
        with trimmed(evalue) as hidden:
            lines = unfiltered(etype, evalue, evalue.__traceback__, *options, **more)
        return [*lines, _note(hidden)] if hidden else lines

    printer.structured_traceback = structured_traceback
    _Installed.printer = printer
