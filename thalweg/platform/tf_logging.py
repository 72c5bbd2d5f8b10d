"""The logger that programs write to, under the name by which they silence it: "tensorflow".

Messages go to standard error (standard output in an interactive shell) as `LEVEL:thalweg:text`.
"""

import itertools
import logging
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

from thalweg.public import public, publish_value

DEBUG: Final = logging.DEBUG
INFO: Final = logging.INFO
WARN: Final = logging.WARNING
ERROR: Final = logging.ERROR
FATAL: Final = logging.CRITICAL

for _name, _level in {
    "DEBUG": DEBUG,
    "INFO": INFO,
    "WARN": WARN,
    "ERROR": ERROR,
    "FATAL": FATAL,
}.items():
    publish_value(f"logging.{_name}", _level)

_INTERACTIVE: Final = hasattr(sys, "ps1") or bool(sys.flags.interactive)


class _Console(logging.StreamHandler[Any]):
    """Writes to the current `sys.stdout` or `sys.stderr`, so that redirections take effect."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stdout if _INTERACTIVE else sys.stderr
        super().emit(record)


def _make_logger() -> logging.Logger:
    logger = logging.getLogger("tensorflow")
    if _INTERACTIVE:
        logger.setLevel(INFO)
    if not logging.getLogger().handlers and not logger.handlers:
        console = _Console()
        console.setFormatter(logging.Formatter("%(levelname)s:thalweg:%(message)s"))
        logger.addHandler(console)
    return logger


_logger: Final = _make_logger()
_counters: Final[dict[tuple[str, int], Iterator[int]]] = defaultdict(itertools.count)
_counters_lock: Final = threading.Lock()


@public("logging.log", "logging.vlog")
def log(level: int, msg: object, *args: object, **kwargs: Any) -> None:
    """Log `msg % args` at a numeric `level`."""
    _logger.log(level, msg, *args, stacklevel=2, **kwargs)


vlog = log


@public("logging.debug")
def debug(msg: object, *args: object, **kwargs: Any) -> None:
    """Log `msg % args` at level DEBUG.

    Args:
        msg: the message, with `%s` and the like for `args`.
        args: the values to put in.
        kwargs: as for `logging.Logger.debug`.

    Example:
        >>> tf.logging.debug("not shown at level %s", "WARN")
    """
    _logger.debug(msg, *args, stacklevel=2, **kwargs)


@public("logging.info")
def info(msg: object, *args: object, **kwargs: Any) -> None:
    """Log `msg % args` at level INFO.

    Args:
        msg: the message, with `%s` and the like for `args`.
        args: the values, formatted only if the message is logged.
        kwargs: as for `logging.Logger.info`.

    Example:
        >>> tf.logging.info("step %d: loss %.3f", 10, 0.5)
    """
    _logger.info(msg, *args, stacklevel=2, **kwargs)


@public("logging.warning", "logging.warn")
def warning(msg: object, *args: object, **kwargs: Any) -> None:
    """Log `msg % args` at level WARN.

    Args:
        msg: the message, with `%s` and the like for `args`.
        args: the values to put in.
        kwargs: as for `logging.Logger.warning`.

    Example:
        >>> tf.logging.set_verbosity(tf.logging.FATAL)
        >>> tf.logging.warning("%s is deprecated", "this")
        >>> tf.logging.set_verbosity(tf.logging.WARN)
    """
    _logger.warning(msg, *args, stacklevel=2, **kwargs)


warn = warning


@public("logging.error")
def error(msg: object, *args: object, **kwargs: Any) -> None:
    """Log `msg % args` at level ERROR.

    Args:
        msg: the message, with `%s` and the like for `args`.
        args: the values to put in.
        kwargs: as for `logging.Logger.error`.

    Example:
        >>> tf.logging.set_verbosity(tf.logging.FATAL)
        >>> tf.logging.error("%d records lost", 3)
        >>> tf.logging.set_verbosity(tf.logging.WARN)
    """
    _logger.error(msg, *args, stacklevel=2, **kwargs)


@public("logging.fatal")
def fatal(msg: object, *args: object, **kwargs: Any) -> None:
    """Log `msg % args` at level FATAL; the program goes on.

    Args:
        msg: the message, with `%s` and the like for `args`.
        args: the values to put in.
        kwargs: as for `logging.Logger.critical`.

    Example:
        >>> tf.logging.set_verbosity(tf.logging.FATAL)
        >>> tf.logging.error("not shown")
        >>> tf.logging.set_verbosity(tf.logging.WARN)
    """
    _logger.critical(msg, *args, stacklevel=2, **kwargs)


@public("logging.TaskLevelStatusMessage")
def TaskLevelStatusMessage(msg: object) -> None:
    """Log the status of this task at level ERROR."""
    _logger.error(msg, stacklevel=2)


@public("logging.log_if")
def log_if(level: int, msg: object, condition: object, *args: object) -> None:
    """Log `msg % args` at `level` if `condition` is true."""
    if condition:
        _logger.log(level, msg, *args, stacklevel=2)


@public("logging.log_every_n")
def log_every_n(level: int, msg: object, n: int, *args: object) -> None:
    """Log the 1st, (n+1)st, (2n+1)st… time that the calling line runs."""
    if _previous_calls() % n == 0:
        _logger.log(level, msg, *args, stacklevel=2)


@public("logging.log_first_n")
def log_first_n(level: int, msg: object, n: int, *args: object) -> None:
    """Log only the first `n` times that the calling line runs."""
    if _previous_calls() < n:
        _logger.log(level, msg, *args, stacklevel=2)


@public("logging.get_verbosity")
def get_verbosity() -> int:
    """The lowest level that is logged."""
    return _logger.getEffectiveLevel()


@public("logging.set_verbosity")
def set_verbosity(v: int | str) -> None:
    """Log messages of a level and above.

    Args:
        v: a level: `tf.logging.DEBUG`, `INFO`, `WARN`, `ERROR`, `FATAL`, or its name.

    Example:
        >>> tf.logging.set_verbosity(tf.logging.ERROR)
        >>> tf.logging.get_verbosity() == tf.logging.ERROR
        True
        >>> tf.logging.set_verbosity(tf.logging.WARN)
    """
    _logger.setLevel(v)


@public("logging.flush")
def flush() -> None:
    """Flush the handlers of the logger.

    Example:
        >>> tf.logging.flush()
    """
    for handler in _logger.handlers:
        handler.flush()


def _previous_calls() -> int:
    """How often the line that called the public function has called it before."""
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage] - builds no traceback
    with _counters_lock:
        return next(_counters[frame.f_code.co_filename, frame.f_lineno])


# The module itself, so that a function that a program replaces is replaced here too.
publish_value("logging", sys.modules[__name__])
