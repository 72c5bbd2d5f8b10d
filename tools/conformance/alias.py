"""Thalweg under the name `tensorflow`, with stand-ins for the internal modules that tests import.

`import tensorflow as tf` gives the package itself. A module below `tensorflow.` is a facade: a name
asked of it is looked up in the sources that `FACADES` lists for it, else among the public names.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import pkgutil
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import thalweg as tf
from conformance import opdefs, summaries
from thalweg import protos
from thalweg.graph import op
from thalweg.platform import tf_logging

# Where the names of an internal module are found, first match wins: a namespace below `tf.`
# ("" is tf itself), a package or module of Thalweg with all inside it, RAW for op constructors, or
# MESSAGES for protocol buffers.
RAW = "<raw ops>"
MESSAGES = "<messages>"
NAMESPACES = ("", "nn", "train", "image", "losses", "metrics", "layers", "summary", "test")
DEFAULT = (*NAMESPACES, "thalweg.ops", "thalweg.variables", "thalweg.graph", RAW)
FACADES: dict[str, tuple[str, ...]] = {
    "python.client.session": ("", "thalweg.runtime"),
    "python.client.timeline": ("thalweg.inspect",),
    "python.layers.convolutional": ("layers", "thalweg.layers"),
    "python.layers.core": ("layers", "thalweg.layers"),
    "python.layers.normalization": ("layers", "thalweg.layers"),
    "python.layers.pooling": ("layers", "thalweg.layers"),
    "python.util.nest": ("nest", "thalweg.graph.nest"),
    "python.framework.common_shapes": ("thalweg.graph", "thalweg.ops"),
    "python.framework.device": ("thalweg.graph.device", ""),
    "python.framework.dtypes": ("thalweg.graph.dtypes", ""),
    "python.framework.errors": ("errors", "thalweg.errors"),
    "python.framework.errors_impl": ("errors", "thalweg.errors"),
    "python.framework.function": ("", "thalweg.graph"),
    "python.framework.graph_util": ("graph_util", "thalweg.graph", "thalweg.train"),
    "python.framework.importer": ("", "thalweg.graph"),
    "python.framework.meta_graph": ("train", "thalweg.saved", "thalweg.train", "thalweg.graph"),
    "python.framework.op_def_registry": ("thalweg.graph",),
    "python.framework.ops": ("", "thalweg.graph", "thalweg.ops", "thalweg.autodiff"),
    "python.framework.random_seed": ("", "thalweg.graph"),
    "python.framework.tensor_shape": ("thalweg.graph.shapes", ""),
    "python.framework.tensor_util": ("", "thalweg.graph", "thalweg.ops"),
    "python.framework.test_util": ("test", "thalweg.testing"),
    "python.lib.io.python_io": ("python_io",),
    "python.ops.control_flow_ops": ("", "control", "thalweg.control", *DEFAULT),
    "python.ops.gradient_checker": ("test", "thalweg.testing"),
    "python.ops.image_ops": ("image", *DEFAULT),
    "python.ops.image_ops_impl": ("image", *DEFAULT),
    "python.ops.losses": ("losses", "thalweg.losses"),
    "python.ops.metrics": ("metrics", "thalweg.metrics"),
    "python.ops.nn": ("nn", *DEFAULT),
    "python.ops.nn_impl": ("nn", "thalweg.nn", *DEFAULT),
    "python.ops.nn_ops": ("nn", "thalweg.nn", *DEFAULT),
    "python.ops.rnn": ("nn", "thalweg.nn"),
    "python.ops.rnn_cell": ("nn.rnn_cell", "thalweg.nn"),
    "python.ops.sets": ("sets", "thalweg.ops"),
    "python.ops.sparse_ops": ("sparse", *DEFAULT),
    "python.ops.variable_scope": ("", "thalweg.variables"),
    "python.platform.app": ("app", "thalweg.platform.app"),
    "python.platform.flags": ("flags", "thalweg.platform.flags"),
    "python.platform.gfile": ("gfile", "thalweg.platform.files.gfile"),
    "python.platform.googletest": ("test", "thalweg.testing"),
    "python.platform.resource_loader": ("resource_loader",),
    "python.platform.test": ("test", "thalweg.testing"),
    "python.platform.tf_logging": ("logging",),
    "python.summary.summary": ("summary",),
    "python.training.tensorboard_logging": ("thalweg.summary.tensorboard_logging",),
    "python.training.saver": ("train", "thalweg.saved", ""),
    "python.tools.freeze_graph": ("thalweg.saved",),
    "python.saved_model.builder": ("saved_model.builder",),
    "python.saved_model.constants": ("saved_model.constants",),
    "python.saved_model.main_op": ("saved_model.main_op",),
    "python.saved_model.signature_constants": ("saved_model.signature_constants",),
    "python.saved_model.signature_def_utils": ("saved_model.signature_def_utils",),
    "python.saved_model.tag_constants": ("saved_model.tag_constants",),
    "python.saved_model.utils": ("saved_model.utils",),
    "python.saved_model.loader": ("saved_model.loader", "thalweg.saved"),
    "python.util.compat": ("compat",),
    "contrib.framework": ("contrib.framework", "", "train"),
    "contrib.metrics": ("contrib.metrics", "sets", "metrics"),
    "contrib.testing": ("contrib.testing", "test"),
    "contrib.util": ("contrib.util", "", "thalweg.graph"),
    "core.lib.core.error_codes_pb2": ("errors", "thalweg.errors"),
}
TRAINING = ("train", "thalweg.train", "", RAW)

# Names that are called otherwise here: a dotted name below `tf.`, or "module:name".
RENAMED: dict[str, str] = {
    **{
        f"python.training.monitored_session._{name}": f"thalweg.train.wrapped_sessions:{name}"
        for name in ("WrappedSession", "CoordinatedSession", "RecoverableSession", "HookedSession")
    },
    "python.training.basic_session_run_hooks._SecondOrStepTimer": "train.SecondOrStepTimer",
    "python.framework.test_util.TensorFlowTestCase": "test.TestCase",
    "python.framework.tensor_util.MakeNdarray": "make_ndarray",
    "python.framework.tensor_util.ConstantValue": "thalweg.graph.known:constant_value",
    "python.platform.googletest.GetTempDir": "test.get_temp_dir",
    "python.framework.device.merge_device": "thalweg.graph.device:device_function",
    "python.ops.array_ops.placeholder_v2": "placeholder",
    "python.ops.control_flow_ops._Enter": "control.enter",
    "python.ops.control_flow_ops._SwitchRefOrTensor": "control.switch",
    "python.ops.control_flow_ops._Identity": "thalweg.control.primitives:same",
    "python.lib.io.file_io.file_exists": "gfile.Exists",
    "python.lib.io.file_io.delete_file": "gfile.Remove",
    "python.lib.io.file_io.delete_recursively": "gfile.DeleteRecursively",
    "python.lib.io.file_io.create_dir": "gfile.MkDir",
    "python.lib.io.file_io.recursive_create_dir": "gfile.MakeDirs",
    "python.lib.io.file_io.get_matching_files": "gfile.Glob",
    "python.lib.io.file_io.is_directory": "gfile.IsDirectory",
    "python.lib.io.file_io.list_directory": "gfile.ListDirectory",
    "python.lib.io.file_io.copy": "gfile.Copy",
    "python.lib.io.file_io.rename": "gfile.Rename",
    "python.lib.io.file_io.stat": "gfile.Stat",
    "python.lib.io.file_io.walk": "gfile.Walk",
}


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


# Constants and helpers of the tests' own surroundings. Nothing that a test checks may be done here.
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


class Facade(types.ModuleType):
    """A module whose names are found when they are asked for."""

    __path__: Sequence[str] = ()

    def __init__(self, name: str, package: bool) -> None:
        super().__init__(name)
        self.__file__ = name
        self._package = package

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = self._child(name) if self._package else find(_inner(self.__name__), name)
        setattr(self, name, value)
        return value

    def _child(self, name: str) -> Any:
        try:
            return importlib.import_module(f"{self.__name__}.{name}")
        except ModuleNotFoundError as error:
            raise AttributeError(f"{self.__name__} has no module {name}") from error


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers every import below `tensorflow.` with a facade."""

    def __init__(self, sources: Path) -> None:
        self.sources = sources

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if not fullname.startswith("tensorflow."):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return Facade(spec.name, self._is_package(spec.name))

    def exec_module(self, module: types.ModuleType) -> None:
        """A facade has nothing to run."""

    def _is_package(self, name: str) -> bool:
        if _inner(name) in FACADES:  # names are asked of it, folder or not
            return False
        folder = self.sources.joinpath(*name.split("."))
        is_inner_core = name.startswith("tensorflow.core") and not name.endswith("_pb2")
        return name == "tensorflow.contrib" or is_inner_core or folder.is_dir()


def install(sources: Path) -> Path:
    """Make `tensorflow` mean Thalweg; return the folder of the package."""
    sys.meta_path.insert(0, Finder(sources))
    sys.modules["tensorflow"] = tf
    # A test that puts another `log` in this module's place wants to see what is logged.
    sys.modules["tensorflow.python.platform.tf_logging"] = tf_logging
    tf.errors._impl = importlib.import_module("tensorflow.python.framework.errors_impl")
    tf.Tensor._shape_as_list = lambda tensor: tensor.shape.as_list()
    # Then all tests of a process shared one folder, and some look in it for what others left.
    tf.test.TestCase.get_temp_dir = lambda case: tf.test.get_temp_dir()
    tf.test.TestCase._GetNdArray = lambda case, value: np.array(value)
    if not hasattr(tf, "contrib"):
        tf.contrib = importlib.import_module("tensorflow.contrib")
    if not hasattr(tf, "test"):
        tf.test = plain_test_module()
    # Files are loaded as main programs; the worker runs their tests.
    tf.test.main = tf.app.run = unittest.main = nothing
    return Path(tf.__path__[0]).resolve()


def plain_test_module() -> types.ModuleType:
    """A bare `tf.test` over unittest, for a package that has none."""
    module = types.ModuleType("thalweg.test")
    module.TestCase = type("TestCase", (unittest.TestCase,), {})
    return module


def find(module: str, name: str) -> Any:
    """The object that answers to `name` in TensorFlow's internal `module`."""
    full_name = f"{module}.{name}"
    if full_name in VALUES:
        return VALUES[full_name]
    if full_name in RENAMED:
        return resolve(RENAMED[full_name])
    for source in sources_of(module):
        value = look_up(source, name)
        if value is not None:
            return value
    raise AttributeError(f"Thalweg has no counterpart of tensorflow.{full_name}")


def sources_of(module: str) -> tuple[str, ...]:
    if module in FACADES:
        return FACADES[module]
    if module.startswith("python.ops.gen_"):
        return (RAW, *DEFAULT)
    if module.endswith("_pb2"):
        return ("", MESSAGES, *DEFAULT)
    return TRAINING if module.startswith("python.training.") else DEFAULT


def look_up(source: str, name: str) -> Any:
    if source == RAW:
        return raw_op(name)
    if source == MESSAGES:
        return message_or_type(name)
    if source.startswith("thalweg."):
        return next((vars(m)[name] for m in modules_in(source) if name in vars(m)), None)
    return getattr(namespace(source), name, None)


def resolve(target: str) -> Any:
    module, colon, name = target.partition(":")
    if colon:
        return getattr(importlib.import_module(module), name)
    path, _, leaf = target.rpartition(".")
    return getattr(namespace(path), leaf)


def namespace(path: str) -> Any:
    """The public namespace at a dotted path below `tf.`, None where there is none."""
    found: Any = tf
    full_name = tf.__name__
    for part in filter(None, path.split(".")):
        found = vars(found).get(part) if isinstance(found, types.ModuleType) else None
        full_name = f"{full_name}.{part}"
        # Importing tensorflow.contrib puts a facade in the place of the namespace itself.
        found = sys.modules.get(full_name) if isinstance(found, Facade) else found
    return found


def message_or_type(name: str) -> Any:
    """A message class, or the number of a data type."""
    if name in dict(protos.DataType.items()):
        return protos.DataType.Value(name)
    return getattr(protos, name, None)


def modules_in(name: str) -> Iterator[types.ModuleType]:
    """A module of Thalweg and, if it is a package, all modules inside it."""
    if not is_module(name):
        return
    module = importlib.import_module(name)
    yield module
    for inner in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}."):
        yield importlib.import_module(inner.name)


def is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def raw_op(name: str) -> Callable[..., Any] | None:
    """The constructor of the op whose type is `name` in snake case, or of a later version of it.

    A leading underscore does not count.
    """
    wanted = name.replace("_", "").lower()
    known = {type_name.lower(): kind for type_name, kind in op.REGISTRY.items()}
    kind = known.get(wanted) or known.get(f"{wanted}v2")
    return None if kind is None else constructor(kind)


def constructor(kind: Any) -> Callable[..., Any]:
    """A function with the op's inputs and then its attributes as parameters, and `name`."""
    inputs = [argument.name for argument in kind.parsed.inputs]
    fields = {kind.graphdef_names.get(name, name): name for name in kind.fields}
    optional = [name for name, field in fields.items() if hasattr(kind, field)]
    required = [name for name in fields if name not in optional]
    parameters = [*inputs, *required, *optional]

    def construct(*args: Any, name: str | None = None, **named: Any) -> Any:
        given = dict(zip(parameters, args, strict=False)) | named
        attributes = {fields[key]: frozen(given[key]) for key in given if key not in inputs}
        if "given_shape" in attributes:
            attributes["given_shape"] = tf.TensorShape(attributes["given_shape"])
        return kind(**attributes)(*(given[key] for key in inputs), name=name)

    return construct


def frozen(value: Any) -> Any:
    """Attributes are hashable values: lists become tuples."""
    return tuple(frozen(item) for item in value) if isinstance(value, list) else value


def _inner(name: str) -> str:
    return name.removeprefix("tensorflow.")
