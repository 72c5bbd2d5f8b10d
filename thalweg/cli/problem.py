"""What is wrong with a file, in words that name it."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager

from thalweg import errors

_EXPECTED = (OSError, ValueError, ImportError, errors.OpError)


class Problem(ValueError):
    """A reason why a command cannot do what it is asked to; the message names the file."""


@contextmanager
def named(path: str) -> Generator[None]:
    """Let whatever goes wrong with a file become a problem that names it."""
    try:
        yield
    except Problem:
        raise
    except (
        Exception
    ) as error:  # the bytes of a file may be anything, and so what they do to a reader
        text = describe(error)
        raise Problem(text if path in text else f"{path}: {text}") from error


def describe(error: Exception) -> str:
    """What an error says, and its class where that is not one that says it all."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror.lower()}"
    known = isinstance(error, _EXPECTED) and str(error)
    return str(error) if known else f"{type(error).__name__}: {error}"
