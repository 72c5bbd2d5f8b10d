"""Thalweg under the name `tensorflow`: what is found there, and when it is not put there."""

import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import thalweg as tf
from thalweg import alias
from thalweg.alias.finder import module_at
from thalweg.alias.libraries.library import Patch, outdated
from thalweg.alias.libraries.sources import PatchingFinder
from thalweg.alias.libraries.table import LIBRARIES
from thalweg.alias.libraries.versions import Version
from thalweg.alias.paths import MODULES, RENAMED, SOURCES


def test_every_place_where_names_are_looked_for_is_there() -> None:
    places = {place for row in SOURCES.values() for place in row}
    places |= {renamed.partition(":")[0] for renamed in RENAMED.values()}
    ours = [place for place in places if place.startswith("thalweg.")]
    assert ours
    assert [place for place in ours if importlib.util.find_spec(place) is None] == []


@pytest.fixture
def tensorflow() -> Iterator[ModuleType]:
    alias.install()
    yield importlib.import_module("tensorflow")
    alias.uninstall()


def test_nothing_is_done_unless_it_is_asked_for() -> None:
    assert not alias.installed()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("tensorflow")


def test_the_public_names_are_thalwegs(tensorflow: ModuleType) -> None:
    assert tensorflow.constant is tf.constant
    assert tensorflow.__version__ == tensorflow.VERSION == "1.15.5"
    assert importlib.import_module("tensorflow.compat.v1") is tensorflow
    assert importlib.import_module("tensorflow.contrib.rnn") is tf.contrib.rnn
    assert importlib.import_module("tensorflow.compat.v1.losses") is tf.losses
    assert "matmul" in dir(tensorflow)


@pytest.mark.parametrize(
    ("module", "name", "expected"),
    [
        ("tensorflow.python.framework.ops", "Graph", "Graph"),
        ("tensorflow.python.framework.dtypes", "float32", "float32"),
        ("tensorflow.python.ops.array_ops", "concat", "concat"),
        ("tensorflow.python.ops.rnn_cell", "LSTMCell", "nn.rnn_cell.LSTMCell"),
        ("tensorflow.python.platform.gfile", "Exists", "gfile.Exists"),
        ("tensorflow.python.training.saver", "Saver", "train.Saver"),
        (
            "tensorflow.contrib.training.python.training.hparam",
            "HParams",
            "contrib.training.HParams",
        ),
        ("tensorflow.contrib.layers.python.layers.layers", "linear", "contrib.layers.linear"),
        (
            "tensorflow.python.client.device_lib",
            "list_local_devices",
            "python.client.device_lib.list_local_devices",
        ),
        ("tensorflow.core.framework.graph_pb2", "GraphDef", "GraphDef"),
        ("tensorflow.core.protobuf.config_pb2", "ConfigProto", "ConfigProto"),
    ],
)
def test_internal_modules_have_public_objects(
    tensorflow: ModuleType, module: str, name: str, expected: str
) -> None:
    wanted: object = tf
    for part in expected.split("."):
        wanted = getattr(wanted, part)
    assert getattr(importlib.import_module(module), name) is wanted


def test_internal_modules_can_be_walked_to_as_attributes() -> None:
    assert tf.python.framework.ops.Tensor is tf.Tensor
    assert tf.contrib.learn.python.learn.datasets.mnist.DataSet is not None


def test_internal_modules_have_those_that_they_import(tensorflow: ModuleType) -> None:
    ops = importlib.import_module("tensorflow.python.ops")
    assert importlib.import_module("tensorflow.python.ops.rnn").rnn_cell_impl is ops.rnn_cell_impl
    assert ops.math_ops.dtypes.float32 is tf.float32
    with pytest.raises(AttributeError, match="no counterpart"):
        _ = ops.tensor_util  # a package has only what lies in it


def test_ops_are_made_by_their_raw_names(tensorflow: ModuleType) -> None:
    made = importlib.import_module("tensorflow.python.ops.gen_math_ops").mat_mul(
        [[1.0, 2.0]], [[3.0], [4.0]], transpose_a=False, transpose_b=False
    )
    with tf.Session() as session:
        assert session.run(made) == [[11.0]]


def test_modules_and_names_that_are_not_there_say_so(tensorflow: ModuleType) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"tensorflow\.nothing.*no counterpart"):
        importlib.import_module("tensorflow.nothing")
    with pytest.raises(AttributeError, match=r"tensorflow\.python\.framework\.ops\.Nothing"):
        importlib.import_module("tensorflow.python.framework.ops").Nothing


def test_uninstalling_forgets_it(tensorflow: ModuleType) -> None:
    importlib.import_module("tensorflow.python.ops.math_ops")
    alias.uninstall()
    assert not [name for name in sys.modules if name.startswith("tensorflow.")]
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("tensorflow")


def test_an_installed_tensorflow_is_not_replaced_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tensorflow.py").write_text("is_the_real_one = True")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="replace=True"):
        alias.install()
    assert importlib.import_module("tensorflow").is_the_real_one
    with pytest.raises(ImportError, match="imported already"):
        alias.install(replace=True)
    del sys.modules["tensorflow"]
    alias.install(replace=True)
    assert importlib.import_module("tensorflow").Graph is tf.Graph
    alias.uninstall()


def test_the_table_has_no_row_that_nothing_reaches() -> None:
    listed = {f"{start}.{name}".lstrip(".") for start in MODULES for name in MODULES[start].split()}
    known = listed | {path.rsplit(".", n)[0] for path in listed for n in range(path.count("."))}
    assert {*SOURCES} - known - {"", "python.keras.engine", "contrib"} <= {
        path for path in SOURCES if module_at(path) is not None
    }
    assert all(name.rpartition(".")[0] in known for name in RENAMED)


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name, extra in (("contrib.slim.arg_scope", "slim"), ("keras", "keras")):
        found: object = tf
        with pytest.raises(AttributeError, match=rf"pip install 'thalweg\[{extra}\]'"):
            for part in name.split("."):
                found = getattr(found, part)


def test_patches_change_what_is_imported_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "from collections import Iterable\nimport numpy as np\nwhole = np.float(3)\n"
    (tmp_path / "of_old.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    finder = PatchingFinder(outdated("of_old"))
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    assert importlib.import_module("of_old").whole == 3.0
    assert (tmp_path / "of_old.py").read_text() == source
    assert not (tmp_path / "__pycache__").exists()
    del sys.modules["of_old"]


def test_patches_keep_the_number_of_lines_and_give_a_reason() -> None:
    for patch in (patch for library in LIBRARIES for patch in library.patches):
        assert isinstance(patch, Patch)
        assert patch.reason
        assert "\n" not in patch.old + patch.new


def test_versions_compare_by_their_numbers() -> None:
    assert Version("1.15.5") > Version("1.8.0") == "1.8.0"


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "thalweg", "run", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


PROGRAM = """\
import collections, time
import numpy as np
import tensorflow as tf
from six.moves import xrange
import beside

flags = tf.app.flags
flags.DEFINE_integer("steps", 1, "how many")

def main(_):
    assert isinstance([], collections.Sequence) and time.clock() and np.float is float
    assert np.array([1.0], copy=False).size and np.issubdtype(np.float32, np.float)
    print(beside.name, tf.Session().run(tf.add_n([float(i) for i in xrange(flags.FLAGS.steps)])))

if __name__ == "__main__":
    tf.app.run()
"""


def test_a_program_runs_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "beside.py").write_text("name = 'sum'")
    done = run("program.py", "--steps=4", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "sum 6.0\n"), done.stderr


def test_flags_are_absls_and_unknown_ones_are_an_error(tmp_path: Path) -> None:
    pytest.importorskip("absl.flags")
    program = PROGRAM.replace("import beside", "from absl import flags as theirs")
    program = program.replace("beside.name", "theirs.FLAGS.steps")
    (tmp_path / "program.py").write_text(program)
    assert run("program.py", "--steps=4", folder=tmp_path).stdout == "4 6.0\n"
    done = run("program.py", "--stepz=4", folder=tmp_path)
    assert done.returncode != 0
    assert "Unknown command line flag 'stepz'" in done.stderr


def test_what_a_program_raises_is_shown_with_its_own_lines(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("def f():\n    raise KeyError('lost')\nf()\n")
    done = run("program.py", folder=tmp_path)
    assert done.returncode == 1
    assert "line 2, in f" in done.stderr
    assert "KeyError: 'lost'" in done.stderr
    assert "cli" not in done.stderr


def test_a_program_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = run("program.py", folder=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "program.py" in done.stderr


def test_names_of_weights_are_text_to_keras() -> None:
    (keras,) = (library for library in LIBRARIES if library.package == "keras")
    source = "names = [n.decode('utf8') for n in names]"
    for patch in keras.patches:
        if patch.holds_for("keras.engine.saving"):
            source = patch.apply(source)
    assert source == "names = [__import__('thalweg').compat.as_text(n) for n in names]"
