"""Messages that go to the log and into an event file, where they stay with the run.

`set_summary_writer` says which file; `log` and its kin are used as those of `tf.logging`.
"""

from __future__ import annotations

import time
from typing import Any, Final

from thalweg import protos
from thalweg.platform import tf_logging

DEBUG: Final = "DEBUG"
INFO: Final = "INFO"
WARN: Final = "WARN"
ERROR: Final = "ERROR"
FATAL: Final = "FATAL"
#: The numbers that levels have in the message LogMessage.
_LEVELS: Final = {DEBUG: 10, INFO: 20, WARN: 30, ERROR: 40, FATAL: 50}


class _Settings:
    """What the functions of this module share."""

    verbosity: str = WARN
    writer: Any = None  # None: messages go to the log alone
    is_set: bool = False  # whether anybody said where messages go


def get_verbosity() -> str:
    """The lowest level that is written to the event file."""
    return _Settings.verbosity


def set_verbosity(verbosity: str) -> None:
    """Write messages of this level and above to the event file."""
    _check_level(verbosity)
    _Settings.verbosity = verbosity


def set_summary_writer(summary_writer: Any) -> None:
    """Write to this FileWriter from now on; None is the log alone."""
    _Settings.writer, _Settings.is_set = summary_writer, True


def _clear_summary_writer() -> None:  # pyright: ignore[reportUnusedFunction] - for tests
    """Forget the writer: the next message is an error."""
    _Settings.writer, _Settings.is_set = None, False


def log(level: str, message: str, *args: object) -> None:
    """Log `message % args`, and write it to the event file if its level is high enough."""
    if not _Settings.is_set:
        raise RuntimeError(
            "Must call set_summary_writer before doing any logging from tensorboard_logging"
        )
    _check_level(level)
    if _Settings.writer and _LEVELS[level] >= _LEVELS[_Settings.verbosity]:
        _Settings.writer.add_event(_event(level, message % args))
    tf_logging.log(getattr(tf_logging, level), message, *args)


def _event(level: str, text: str) -> Any:
    event = protos.Event(wall_time=time.time())
    event.log_message.level = _LEVELS[level]
    event.log_message.message = text
    return event


def _check_level(level: str) -> None:
    if level not in _LEVELS:
        raise ValueError(f"Level {level} is not a valid tensorboard_logging level")


def debug(message: str, *args: object) -> None:
    """Log `message % args` at level DEBUG."""
    log(DEBUG, message, *args)


def info(message: str, *args: object) -> None:
    """Log `message % args` at level INFO."""
    log(INFO, message, *args)


def warn(message: str, *args: object) -> None:
    """Log `message % args` at level WARN."""
    log(WARN, message, *args)


def error(message: str, *args: object) -> None:
    """Log `message % args` at level ERROR."""
    log(ERROR, message, *args)


def fatal(message: str, *args: object) -> None:
    """Log `message % args` at level FATAL."""
    log(FATAL, message, *args)
