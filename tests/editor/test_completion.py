"""Completion offers public names: in editors that read (Pyright, jedi) and in ones that run."""

from __future__ import annotations

from pathlib import Path

import jedi
import pytest

import thalweg as tf
from tests.editor.conftest import site_packages
from tests.editor.language_server import LanguageServer
from thalweg import public

MODULES = ("", "nn", "train", "layers", "data", "contrib.layers", "math", "errors", "compat")
START = "import thalweg as tf\nx = tf.placeholder(tf.float32, [None])\n"


def shown(names: list[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def offered(path: str) -> set[str]:
    """The names in a module that have no underscore in front."""
    return shown([*public.children(path)])


def test_pyright_completes_to_public_names_alone(project: Path) -> None:
    with LanguageServer(project) as server:
        for path in MODULES:
            actual = server.completions(f"{START}tf.{path}{'.' * bool(path)}")
            assert shown(actual) == offered(path), path
        assert {"numpy", "get_shape", "dtype"} <= {*server.completions(f"{START}tf.nn.relu(x).")}


@pytest.mark.parametrize("path", MODULES)
def test_modules_list_public_names_alone(path: str) -> None:
    code = f"tf.{path}{'.' * bool(path)}"
    found = jedi.Interpreter(code, [{"tf": tf}]).complete()
    assert shown([name.name for name in found]) == offered(path)


def test_jedi_reads_names_and_types(project: Path) -> None:
    paths = [
        str(site_packages(project)),
        *(site_packages(project) / "others.pth").read_text().split(),
    ]
    jedi.settings.cache_directory = str(project / "jedi")
    reader = jedi.Project(project, sys_path=paths)

    def complete(end: str) -> set[str]:
        return shown([name.name for name in jedi.Script(START + end, project=reader).complete()])

    # jedi adds the modules that lie in the folder of a package, whatever its stubs say.
    assert offered("nn") <= complete("tf.nn.")
    assert complete("tf.math.") == offered("math")
    assert complete("tf.nn.relu(x).") == complete("x.") >= {"numpy", "get_shape", "dtype"}
    assert complete("tf.train.AdamOptimizer(0.1).") >= {"minimize", "apply_gradients"}
    signature = jedi.Script(f"{START}tf.matmul(", project=reader).get_signatures()[0]
    assert signature.to_string().startswith("matmul(a: TensorLike, b: TensorLike, ")
    assert signature.docstring(raw=True)
