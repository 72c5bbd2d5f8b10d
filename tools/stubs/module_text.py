"""The text of one stub module: names written in full become local names and imports."""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable

_DOTTED = re.compile(r"(?<![\w.\"'])([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?![\w\"'])")


class ModuleText:
    """Collects the definitions of a module and the imports that their types need."""

    def __init__(self, name: str, taken: set[str], home: Callable[[str], str]) -> None:
        self.name = name
        self._taken = taken  # names that mean something else here, at the top or in a class
        self._home = home
        self._imports: dict[str, str] = {}
        self._parts: list[str] = []

    def add(self, definition: str) -> None:
        """Append a definition."""
        self._parts.append(definition)

    def local(self, text: str) -> str:
        """A type with every full name replaced by what it is called in this module."""
        return _DOTTED.sub(lambda match: self._local(match.group(1)), text)

    def _local(self, dotted: str) -> str:
        if dotted in ("None", "Any"):
            return dotted
        if "." not in dotted:
            return self._builtin(dotted)
        home = self._home(dotted)
        module, _, leaf = home.rpartition(".")
        if module == self.name:
            return leaf
        return self._imported(module, leaf)

    def _builtin(self, name: str) -> str:
        if not hasattr(builtins, name) or name not in self._taken:
            return name
        return self._imported("builtins", name)

    def _imported(self, module: str, leaf: str) -> str:
        alias = f"_{leaf}" if leaf in self._taken else leaf
        line = f"from {module} import {leaf}" + (f" as {alias}" if alias != leaf else "")
        bound = self._imports.setdefault(alias, line)
        if bound != line:
            alias = f"_{module.replace('.', '_')}_{leaf}"
            self._imports[alias] = f"from {module} import {leaf} as {alias}"
        return alias

    def text(self, doc: str) -> str:
        """The module."""
        imports = "\n".join(sorted(self._imports.values()))
        return "\n\n".join(part for part in (quoted(doc), imports, *self._parts) if part) + "\n"


def quoted(doc: str, indent: str = "") -> str:
    """A docstring as source."""
    if not doc:
        return ""
    body = doc.replace("\\", "\\\\").replace('"""', r"\"\"\"")
    body = f"{body} " if body.endswith('"') else body
    lines = body.split("\n")
    rest = [f"{indent}{line}".rstrip() for line in lines[1:]]
    end = f"\n{indent}" if rest else ""
    return "\n".join([f'{indent}"""{lines[0]}', *rest]) + f'{end}"""'
