"""Thalweg: a deep-learning system in pure Python. `import thalweg as tf`."""

import sys as _sys

from thalweg import (
    alias,
    autodiff,
    cluster,
    control,
    data,
    distributions,
    errors,
    functions,
    graph,
    image,
    inspect,
    layers,
    linear_operators,
    losses,
    metrics,
    nn,
    onnx,
    ops,
    optimize,
    platform,
    public,
    runtime,
    saved,
    seq2seq,
    summary,
    testing,
    train,
    variables,
)
from thalweg.version import __version__

#: The packages whose import registers the public names.
_PARTS = (
    alias,
    autodiff,
    cluster,
    control,
    data,
    distributions,
    errors,
    functions,
    graph,
    image,
    inspect,
    layers,
    linear_operators,
    losses,
    metrics,
    nn,
    onnx,
    ops,
    optimize,
    platform,
    runtime,
    saved,
    seq2seq,
    summary,
    testing,
    train,
    variables,
)

# `import thalweg.compat.v1 as tf`: there is only this one API.
_sys.modules[f"{__name__}.compat.v1"] = _sys.modules[__name__]
public.publish_value("compat.v1", _sys.modules[__name__])
public.install(_sys.modules[__name__])

platform.tracebacks.enable_traceback_filtering()
