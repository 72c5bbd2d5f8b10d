"""The stubs hold the public API: every name is there, with the parameters that it has."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import thalweg as tf
from tests.editor.conftest import site_packages
from thalweg import public

Definition = ast.FunctionDef | ast.ClassDef


class Stubs:
    """Stub modules as syntax trees; imports lead to where a name is defined."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @functools.cache  # noqa: B019 - lives as long as the tests
    def names(self, path: str) -> dict[str, ast.stmt]:
        """What a module defines or imports for its users. Of overloads the last one counts."""
        place = self._folder.joinpath(*path.split(".")[1:])
        file = place / "__init__.pyi" if place.is_dir() else place.with_suffix(".pyi")
        return dict(_exported(ast.parse(file.read_text())))

    def definition(self, path: str, leaf: str) -> ast.stmt:
        """Where a name is defined."""
        found = self.names(path)[leaf]
        if isinstance(found, ast.ImportFrom) and found.module:
            return self.definition(found.module, found.names[0].name)
        return found


def _exported(module: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    for node in module.body:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                yield node.name, node
            case ast.AnnAssign(ast.Name(name)) | ast.Assign([ast.Name(name)]):
                yield name, node
            case ast.ImportFrom(names=[ast.alias(name, alias)]) if alias == name:
                yield name, node
            case _:
                pass


@pytest.fixture(scope="session")
def stubs(project: Path) -> Stubs:
    return Stubs(site_packages(project) / "thalweg-stubs")


def functions() -> Iterator[tuple[str, str, Callable[..., Any]]]:
    """Public functions and constructors: module, name, what is called."""
    for name, value in public.namespace().items():
        path, _, leaf = f"thalweg.{name}".rpartition(".")
        if inspect.isfunction(value):
            yield path, leaf, value
        elif isinstance(value, type) and inspect.isfunction(vars(value).get("__init__")):
            yield path, leaf, value.__init__


def parameters(definition: ast.FunctionDef) -> list[tuple[str, str, bool]]:
    """Name, kind and whether there is a default, as the stub has it."""
    code = compile(ast.Module([_bare(definition)], []), "<stub>", "exec")
    names: dict[str, Any] = {}
    exec(code, names)
    return described(names[definition.name])


def _bare(definition: ast.FunctionDef) -> ast.FunctionDef:
    """A function without types, decorators and default values that need other names."""
    copied = ast.parse(ast.unparse(definition)).body[0]
    assert isinstance(copied, ast.FunctionDef)
    copied.decorator_list, copied.returns = [], None
    for node in ast.walk(copied.args):
        if isinstance(node, ast.arg):
            node.annotation = None
    none: ast.expr = ast.Constant(None)
    copied.args.defaults = [none for _ in copied.args.defaults]
    copied.args.kw_defaults = [default and none for default in copied.args.kw_defaults]
    return ast.fix_missing_locations(copied)


def described(function: Callable[..., Any]) -> list[tuple[str, str, bool]]:
    found = inspect.signature(function).parameters.values()
    return [(p.name, p.kind.name, p.default is not p.empty) for p in found]


def test_modules_have_their_public_names_and_no_others(stubs: Stubs) -> None:
    paths = {name.rpartition(".")[0] for name in public.names()}
    for path in sorted(paths):
        own = {name for name in stubs.names(f"thalweg.{path}".rstrip(".")) if name != "__version__"}
        assert own == public.children(path), path


def test_functions_have_their_parameters(stubs: Stubs) -> None:
    for path, leaf, function in functions():
        found = stubs.definition(path, leaf)
        if isinstance(found, ast.ClassDef):
            inits = [node for node in found.body if getattr(node, "name", "") == "__init__"]
            found = inits[-1] if inits else found
        if isinstance(found, ast.FunctionDef):
            assert parameters(found) == described(function), f"{path}.{leaf}"
        else:
            assert isinstance(found, ast.Assign), f"{path}.{leaf}: the class has another name"


def test_a_tensor_is_called_one(stubs: Stubs) -> None:
    """What is left of `Any` in signatures is not more than it was: types come from the sources."""
    found = [stubs.definition(path, leaf) for path, leaf, _ in functions()]
    defined = {node for node in found if isinstance(node, ast.FunctionDef)}
    arguments = [a for node in defined for a in node.args.args if a.annotation is not None]
    unknown = [a for a in arguments if ast.unparse(a.annotation or a) == "Any"]
    results = [ast.unparse(node.returns) for node in defined if node.returns is not None]
    assert len(unknown) < 0.19 * len(arguments)
    assert results.count("Any") < 0.07 * len(results)
    assert results.count("Tensor") > 0.5 * len(results)


def test_docstrings_are_there_to_be_hovered_over(stubs: Stubs) -> None:
    bare = [
        f"{path}.{leaf}"
        for path, leaf, function in functions()
        if isinstance(node := stubs.definition(path, leaf), Definition)
        and function.__doc__
        and not ast.get_docstring(node)
    ]
    assert bare == []


def test_versions_of_the_api_are_one() -> None:
    assert isinstance(tf.compat.v1, ModuleType)
    assert tf.compat.v1.nn.relu is tf.nn.relu
