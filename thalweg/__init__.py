"""Thalweg: a deep-learning system in pure Python. `import thalweg as tf`."""

import sys as _sys
from typing import Any as _Any

from thalweg import (
    autodiff,
    control,
    data,
    distributions,
    errors,
    functions,
    graph,
    image,
    inspect,
    layers,
    losses,
    metrics,
    nn,
    ops,
    platform,
    public,
    runtime,
    saved,
    summary,
    testing,
    train,
    variables,
)
from thalweg.version import __version__

#: The packages whose import registers the public names.
_PARTS = (
    autodiff,
    control,
    data,
    distributions,
    errors,
    functions,
    graph,
    image,
    inspect,
    layers,
    losses,
    metrics,
    nn,
    ops,
    platform,
    runtime,
    saved,
    summary,
    testing,
    train,
    variables,
)

public.install(_sys.modules[__name__])

# `import thalweg.compat.v1 as tf`: there is only this one API.
_sys.modules[f"{__name__}.compat.v1"] = _sys.modules[__name__]
_sys.modules[f"{__name__}.compat"].v1 = _sys.modules[__name__]  # pyright: ignore[reportAttributeAccessIssue] - a module made by install

platform.tracebacks.enable_traceback_filtering()


def __getattr__(name: str) -> _Any:
    """Public names are installed from the registry; some of them only when they are asked for."""
    return public.load(name)
