"""`tensorflow.python.debug`: libraries import its classes, and use them where they are asked to."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np


class _Debugger:
    """A debugger that is not here."""

    def __init__(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(
            f"{type(self).__name__} is not here: see tf.Print, tf.add_check_numerics_ops and "
            "Session.plan"
        )


class DumpingDebugHook(_Debugger):
    """Writes all values of a step to files."""


class DumpingDebugWrapperSession(_Debugger):
    """Writes all values of a step to files."""


class LocalCLIDebugHook(_Debugger):
    """Stops before each step, with a command line."""


class LocalCLIDebugWrapperSession(_Debugger):
    """Stops before each step, with a command line."""


class TensorBoardDebugHook(_Debugger):
    """Shows steps to TensorBoard."""


class TensorBoardDebugWrapperSession(_Debugger):
    """Shows steps to TensorBoard."""


def has_inf_or_nan(datum: Any, tensor: Any) -> bool:
    """Whether an array has infinite or undefined elements."""
    values = np.asarray(tensor)
    return values.dtype.kind in "fc" and not bool(np.all(np.isfinite(values)))
