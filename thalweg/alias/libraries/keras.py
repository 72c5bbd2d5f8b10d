"""Keras 2.3.1, the last that runs on TensorFlow 1: it is `tf.keras`. 2.2.4 is mended alike."""

from __future__ import annotations

import importlib
from types import ModuleType

from thalweg.alias.libraries.library import Library, Patch, outdated

_PATCHES = [
    *outdated("keras"),
    *outdated("keras_preprocessing"),
    *outdated("keras_applications"),
    Patch(
        "keras*",
        r"yaml\.load\((\w+)\)",
        r"yaml.load(\1, Loader=yaml.FullLoader)",
        "PyYAML 6 asks for a loader",
    ),
    Patch(
        "keras.engine.saving",
        r"(\w+(?:\.attrs)?\['(?:keras_version|backend)'\]|\b\w+_config)\.decode\('utf-?8'\)",
        r"__import__('thalweg').compat.as_text(\1)",
        "h5py 3 returns text where it returned bytes",
    ),
    Patch(
        "keras.engine.saving",
        r"\bn\.decode\('utf-?8'\)",
        "__import__('thalweg').compat.as_text(n)",
        "h5py 3 returns the names of weights as text",
    ),
    Patch(
        "keras.engine.saving",
        r"\bif weight_names:",
        "if len(weight_names):",
        "h5py 3 returns the names of weights in an array",
    ),
    Patch(
        "keras.utils.io_utils",
        r"(?<=h5py\.File\('in-memory-h5py', )(?=driver)",
        "mode='a', ",
        "h5py 3 opens files to read only",
    ),
    Patch(
        "keras.utils.io_utils",
        r"\bh5file\.fid\b",
        "h5file.id",
        "h5py 3 calls it by its one name",
    ),
    Patch(
        "keras.utils.conv_utils",
        r"\bkernel\[slices\]",
        "kernel[tuple(slices)]",
        "NumPy takes no list of slices as an index any more",
    ),
]


def _add_names() -> None:
    """Give Keras what only TensorFlow's own copy had."""
    keras = importlib.import_module("keras")
    ours = importlib.import_module("thalweg.alias.libraries.keras_additions")
    keras.layers.AbstractRNNCell = ours.AbstractRNNCell
    keras.losses.Reduction = ours.Reduction
    keras.initializers.VarianceScaling = ours.VarianceScaling
    for name in ("estimator", "experimental"):
        module = ModuleType(f"keras.{name}")
        module.__getattr__ = getattr(ours, f"find_in_{name}")
        setattr(keras, name, module)


LIBRARY = Library(
    package="keras",
    requirement="keras==2.3.1",
    extra="keras",
    places={"keras": "keras", "contrib.keras": "keras"},
    patches=_PATCHES,
    loaded=_add_names,
)
