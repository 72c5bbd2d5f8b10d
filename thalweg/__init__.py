"""Thalweg: a deep-learning system in pure Python. `import thalweg as tf`."""

import sys as _sys
from importlib import import_module as _import_module

from thalweg import platform, public
from thalweg.platform.collector import gc_paused as _gc_paused
from thalweg.version import __version__

#: The packages whose import registers the public names.
_PARTS = (
    "alias",
    "autodiff",
    "cluster",
    "control",
    "data",
    "errors",
    "functions",
    "graph",
    "image",
    "inspect",
    "layers",
    "losses",
    "nn",
    "onnx",
    "ops",
    "optimize",
    "runtime",
    "saved",
    "summary",
    "train",
    "variables",
)

with _gc_paused(are_kept=True):
    for _part in _PARTS:
        _import_module(f"{__name__}.{_part}")

# Parts that many programs do without are imported when one first asks for a name of theirs.
public.publish_from("thalweg.distributions", "distributions.*", "contrib.distributions.*")
public.publish_from("thalweg.graph.selection", "contrib.graph_editor.*")
public.publish_from("thalweg.linear_operators", "linalg.*")
public.publish_from(
    "thalweg.metrics", "metrics.*", "contrib.metrics.*", "confusion_matrix", "math.confusion_matrix"
)
public.publish_from(
    "thalweg.seq2seq",
    "contrib.crf.*",
    "contrib.seq2seq.*",
    "contrib.legacy_seq2seq.*",
    "nn.seq2seq.*",
)
public.publish_from("thalweg.testing", "test.*")

# `import thalweg.compat.v1 as tf`: there is only this one API.
_sys.modules[f"{__name__}.compat.v1"] = _sys.modules[__name__]
public.publish_value("compat.v1", _sys.modules[__name__])
public.install(_sys.modules[__name__])

platform.tracebacks.enable_traceback_filtering()
