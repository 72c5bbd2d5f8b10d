"""File-system errors during training: logged, not fatal.

A full disk may be a temporary condition, and losing a checkpoint or a summary costs less than
ending the training.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from thalweg import errors
from thalweg.platform import tf_logging


@contextmanager
def log_disk_errors(doing: str, unless: bool = False) -> Generator[None]:
    """Suppress and log file-system errors of the block."""
    try:
        yield
    except (OSError, errors.OpError) as error:
        if unless or not is_of_files(error):
            raise
        tf_logging.error("%s failed; training goes on. %s", doing, error)


def is_of_files(error: BaseException) -> bool:
    """Whether an error is a file-system error or was caused by one."""
    return isinstance(error, OSError) or isinstance(error.__cause__, OSError)
