"""Files that cannot be written while training runs: told, not fatal.

A disk may be full for an hour and empty again; the steps of that hour are worth more than one
checkpoint or one summary.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from thalweg import errors
from thalweg.platform import tf_logging


@contextmanager
def survived(doing: str, unless: bool = False) -> Generator[None]:
    """Log an error of the file system that the block raises, and go on behind it."""
    try:
        yield
    except (OSError, errors.OpError) as error:
        if unless or not is_of_files(error):
            raise
        tf_logging.error("%s failed; training goes on. %s", doing, error)


def is_of_files(error: BaseException) -> bool:
    """Whether an error came from the operating system's files, as it is or under another name."""
    return isinstance(error, OSError) or isinstance(error.__cause__, OSError)
