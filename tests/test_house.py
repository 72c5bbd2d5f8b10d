"""The house rules a linter cannot hold: no hidden imports inside functions, none upwards for types.

The layers come from the import-linter contract in pyproject.toml, so there is one list of them.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "thalweg"
FILES = sorted(PACKAGE.rglob("*.py"))

Import = ast.Import | ast.ImportFrom
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def layer_heights() -> dict[str, int]:
    """Package name -> height: an import must go to a lower height, or stay in its package."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = config["tool"]["importlinter"]["contracts"]
    lowest_first = reversed(contract["layers"])
    return {
        name: height
        for height, layer in enumerate(lowest_first)
        for name in re.findall(r"\w+", layer)
    }


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imported_modules(node: Import, file: Path) -> Iterator[str]:
    """The thalweg modules that an import statement names, relative ones resolved."""
    if isinstance(node, ast.Import):
        targets = [alias.name for alias in node.names]
    else:
        base = resolve(node, file)
        targets = [f"{base}.{alias.name}" for alias in node.names]
    yield from (target for target in targets if target.split(".")[0] == "thalweg")


def resolve(node: ast.ImportFrom, file: Path) -> str:
    if not node.level:
        return node.module or ""
    package = list(file.relative_to(ROOT).parent.parts)
    package = package[: len(package) - node.level + 1]
    return ".".join([*package, *filter(None, [node.module])])


def imports_inside_functions(tree: ast.AST) -> Iterator[Import]:
    for function in ast.walk(tree):
        if isinstance(function, Function):
            yield from (node for node in ast.walk(function) if isinstance(node, Import))


def imports_for_types(tree: ast.AST) -> Iterator[Import]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from (inner for inner in ast.walk(node) if isinstance(inner, Import))


def hidden_imports(source: str, file: Path) -> list[str]:
    if not re.search(r"^[ \t]+(import|from) ", source, re.MULTILINE):
        return []  # without parsing it
    return [
        f"{file.relative_to(ROOT)}:{node.lineno} imports {target} inside a function"
        for node in imports_inside_functions(ast.parse(source))
        for target in imported_modules(node, file)
    ]


def upward_type_imports(source: str, file: Path) -> list[str]:
    if "TYPE_CHECKING" not in source:
        return []
    heights = layer_heights()
    here = layer_of(module_name(file))
    return [
        f"{file.relative_to(ROOT)}:{node.lineno} imports {target} upwards for its types"
        for node in imports_for_types(ast.parse(source))
        for target in imported_modules(node, file)
        if layer_of(target) != here and heights[layer_of(target)] >= heights[here]
    ]


def layer_of(module: str) -> str:
    return module.split(".")[1]


def test_no_function_imports_a_module_of_ours():
    assert [line for file in FILES for line in hidden_imports(file.read_text(), file)] == []


def test_no_import_for_types_goes_upwards():
    inside = [file for file in FILES if file.parent != PACKAGE or file.name != "__init__.py"]
    assert [line for file in inside for line in upward_type_imports(file.read_text(), file)] == []


@pytest.mark.parametrize(
    "statement", ["import thalweg.ops.math", "from thalweg.ops import math", "from ..ops import a"]
)
def test_hidden_imports_are_found_in_every_spelling(statement: str):
    file = PACKAGE / "graph" / "invented.py"
    (line,) = hidden_imports(f"class A:\n  def f(self):\n    {statement}\n", file)
    assert "thalweg/graph/invented.py:3 imports thalweg.ops" in line


def test_imports_of_other_packages_may_be_inside_functions():
    file = PACKAGE / "graph" / "invented.py"
    assert hidden_imports("def f():\n  import numpy\n  from . import numpy as n\n", file) == [
        "thalweg/graph/invented.py:3 imports thalweg.graph.numpy inside a function"
    ]


def test_upward_type_imports_are_found_and_downward_ones_allowed():
    source = (
        "if typing.TYPE_CHECKING:\n  from thalweg.ops import a\n  from thalweg.public import b\n"
    )
    (line,) = upward_type_imports(source, PACKAGE / "graph" / "invented.py")
    assert "invented.py:2 imports thalweg.ops.a upwards" in line
    assert upward_type_imports(source, PACKAGE / "runtime" / "invented.py") == []
