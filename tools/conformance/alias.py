"""The alias as TensorFlow's tests of 2016 need it: what only tests import, put beside the rest.

`thalweg.alias` makes `tensorflow` mean Thalweg. Here are constants and helpers of the tests' own
surroundings, which no program needs. Nothing that a test checks may be done here.
"""

import importlib
import types
import unittest
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import thalweg as tf
import thalweg.alias
from conformance import opdefs, summaries
from thalweg import protos
from thalweg.platform import tf_logging


def binary_file(name: str, mode: str = "r") -> Any:
    """The files of the tests' day read bytes whatever their mode."""
    return tf.gfile.GFile(name, f"{mode}b")


def write_bytes(name: str, content: Any) -> None:
    """Make a file of text or bytes."""
    with binary_file(name, "w") as file:
        file.write(content)


def make_specific_exception(node_def: Any, node: Any, message: str, error_code: int) -> Exception:
    """The error that Thalweg has for a status code."""
    try:
        kind: Any = tf.errors.exception_type_from_error_code(error_code)
    except KeyError:
        warnings.warn(f"Unknown error code: {error_code}", stacklevel=2)
        kind = tf.errors.UnknownError
    return kind(node_def, node, message)


def nothing(*_: object, **__: object) -> None:
    """Does nothing."""


#: In the order of the DataType protobuf, from 1: those that TensorFlow had in 2016.
TYPE_NAMES = tuple(tf.as_dtype(number).name for number in range(1, 21))


def intensities() -> dict[Any, tuple[Any, Any]]:
    """The range of the elements of an image, by the scalar type of NumPy."""
    kinds = [kind for kind in map(tf.as_dtype, TYPE_NAMES) if kind.is_integer or kind.is_floating]
    ranges = {kind: (-1, 1) if kind.is_floating else (kind.min, kind.max) for kind in kinds}
    return {kind.as_numpy_dtype: ends for kind, ends in ranges.items()}


def old_types() -> types.SimpleNamespace:
    """The enum DataType of the tests' day: some tests go through all there are."""
    enum = protos.DataType
    numbers = {name: n for name, n in enum.items() if n % 100 <= len(TYPE_NAMES)}
    return types.SimpleNamespace(
        keys=numbers.keys,
        values=numbers.values,
        items=numbers.items,
        Name=enum.Name,
        Value=enum.Value,
    )


def old_levels() -> types.SimpleNamespace:
    """LogMessage with the name that its lowest level had in the tests' day."""
    levels = dict(protos.LogMessage.Level.items())
    return types.SimpleNamespace(**levels, DEBUG=levels["DEBUGGING"])


#: What tests find under names of internal modules.
VALUES: dict[str, Any] = {
    "contrib.testing.FakeSummaryWriter": summaries.FakeSummaryWriter,
    "contrib.testing.latest_summaries": summaries.latest_summaries,
    "contrib.testing.latest_events": summaries.latest_events,
    "core.framework.types_pb2.DataType": old_types(),
    "core.util.event_pb2.LogMessage": old_levels(),
    "core.lib.core.error_codes_pb2.Code": types.SimpleNamespace(values=lambda: [*range(17), 20]),
    "core.lib.core.error_codes_pb2."
    "DO_NOT_USE_RESERVED_FOR_FUTURE_EXPANSION_USE_DEFAULT_IN_SWITCH_INSTEAD_": 20,
    "python.framework.dtypes._TYPE_TO_STRING": dict(enumerate(TYPE_NAMES, start=1)),
    "python.framework.dtypes.dtype_range": intensities(),
    "python.framework.errors_impl._make_specific_exception": make_specific_exception,
    "python.framework.op_def_registry.register_op_list": opdefs.register_op_list,
    "python.framework.ops.RegisterShape": lambda _: lambda function: function,
    "python.framework.random_seed.DEFAULT_GRAPH_SEED": 87654321,
    "python.framework.test_util.IsGoogleCudaEnabled": lambda: False,
    "python.framework.test_util.CudaSupportsHalfMatMulAndConv": lambda: False,
    "python.lib.io.file_io.FileIO": binary_file,
    "python.lib.io.file_io.write_string_to_file": write_bytes,
    "python.lib.io.file_io.atomic_write_string_to_file": write_bytes,
    "python.lib.io.file_io.read_file_to_string": lambda name: binary_file(name).read(),
    "python.ops.array_ops.rank_internal": lambda x, name=None, optimize=True: tf.rank(x, name),
    "python.platform.control_imports.USE_OSS": True,
    "python.util.all_util.remove_undocumented": nothing,
    "python.util.all_util.reveal_undocumented": nothing,
}


def install() -> Path:
    """Make `tensorflow` mean Thalweg; return the folder of the package."""
    # The sources of the tests are a package of that name; they are of the end of 2016.
    thalweg.alias.install(replace=True, version="0.12")
    for path, value in VALUES.items():
        module, _, name = path.rpartition(".")
        setattr(importlib.import_module(f"tensorflow.{module}"), name, value)
    # A test that puts another `log` in this module's place wants to see what is logged.
    importlib.import_module("tensorflow.python.platform").tf_logging = tf_logging
    tf.errors._impl = importlib.import_module("tensorflow.python.framework.errors_impl")
    tf.Tensor._shape_as_list = lambda tensor: tensor.shape.as_list()
    # Then all tests of a process shared one folder, and some look in it for what others left.
    tf.test.TestCase.get_temp_dir = lambda case: tf.test.get_temp_dir()
    tf.test.TestCase._GetNdArray = lambda case, value: np.array(value)
    # Files are loaded as main programs; the worker runs their tests.
    tf.test.main = tf.app.run = unittest.main = nothing
    return Path(tf.__path__[0]).resolve()
