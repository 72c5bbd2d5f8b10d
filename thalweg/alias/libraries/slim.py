"""tf-slim 1.1.0: it is `tf.contrib.slim`, most of `contrib.layers`, `.framework` and `.metrics`.

Some of these names are here without the package. Arguments of an `arg_scope` reach only functions
of the package, so once it is loaded, all names that it has are its own.
"""

from __future__ import annotations

import importlib

from thalweg.alias import names
from thalweg.alias.libraries.library import Library, Patch, outdated


def _take_over() -> None:
    """Let the public namespaces have the package's functions."""
    for place, source in (
        ("contrib.slim", "tf_slim"),
        ("contrib.layers", "tf_slim.layers"),
        ("contrib.framework", "tf_slim.ops.variables"),
        ("contrib.framework", "tf_slim.ops.arg_scope"),
        ("contrib.metrics", "tf_slim.metrics"),
    ):
        package = importlib.import_module(source)
        found = {name: value for name, value in vars(package).items() if not name.startswith("_")}
        for name, value in found.items():
            setattr(names.namespace(place), name, value)


LIBRARY = Library(
    package="tf_slim",
    requirement="tf-slim==1.1.0",
    extra="slim",
    places={
        "contrib.slim": "tf_slim",
        "contrib.layers": "tf_slim.layers",
        "contrib.framework": "tf_slim.ops.arg_scope",
        "contrib.metrics": "tf_slim.metrics",
    },
    patches=[
        *outdated("tf_slim"),
        Patch(
            "tf_slim.ops.variables",
            r"ckpt_value\[slice_dims\]",
            "ckpt_value[tuple(slice_dims)]",
            "NumPy 1.23 takes a tuple of slices as an index, not a list",
        ),
    ],
    loaded=_take_over,
)
