"""The notebooks of the course as modules: `one = chapter("1_graph")`.

A module has the definitions of its notebook (imports, functions, classes, names in capitals), not
what the notebook tries out with them.
"""

from __future__ import annotations

import ast
import json
import linecache
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parent


def chapter(name: str) -> ModuleType:
    """The definitions of a notebook of this folder."""
    key = f"chapter_{name}"
    if key not in sys.modules:
        sys.modules[key] = module = ModuleType(key)
        for number, code in enumerate(cells(name)):
            file = f"<{name}, cell {number + 1}>"
            linecache.cache[file] = len(code), None, code.splitlines(keepends=True), file
            for statement in ast.parse(code).body:
                if _is_definition(statement, module):
                    part = ast.Module([statement], [])
                    exec(compile(part, file, "exec"), vars(module))
    return sys.modules[key]


def cells(name: str) -> list[str]:
    """The code of a notebook."""
    notebook = json.loads((FOLDER / f"{name}.ipynb").read_text())
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def _is_definition(statement: ast.stmt, module: ModuleType) -> bool:
    """Whether a statement defines something: also a name in capitals, or one from a module."""
    if not isinstance(statement, ast.Assign):
        kinds = ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom
        return isinstance(statement, kinds)
    targets, used = (
        {n.id for n in ast.walk(each) if isinstance(n, ast.Name)} for each in _sides(statement)
    )
    modules = {name for name, value in vars(module).items() if isinstance(value, ModuleType)}
    return all(map(str.isupper, targets)) or used <= modules | {"chapter"}


def _sides(statement: ast.Assign) -> tuple[ast.AST, ast.AST]:
    return ast.Tuple(statement.targets), statement.value
