"""Writes the stubs: a package with a module for each public module, and one for private classes."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from tools.stubs import annotations, sources
from tools.stubs.annotations import ANY, LIKES, MAYBE_NONE
from tools.stubs.classes import Classes
from tools.stubs.messages import is_message, written_message
from tools.stubs.module_text import ModuleText
from tools.stubs.registry import PACKAGE, PRIVATE, Homes, OnDemand, is_defined, is_open, modules
from tools.stubs.signatures import Signatures

#: Where stubs are in the repository.
DIRECTORY = Path("build/stubs/thalweg-stubs")

#: The whole API once more.
V1 = f"{PACKAGE}.compat.v1"


class Writer:
    """Makes the text of every module."""

    def __init__(self) -> None:
        self._modules = modules()
        self._homes = Homes(self._modules)
        self._signatures = Signatures()
        self._classes = Classes(self._signatures, lambda kind: self._homes.of(kind) is not None)
        self._values = [value for own in self._modules.values() for value in own.values()]
        self._private: dict[str, object] = {}  # what has no public name, by its name here
        self._is_closed = False

    def texts(self) -> dict[str, str]:
        """The text of each module by its name. The private one is last: others fill it."""
        result = {name: self._module(name, own) for name, own in self._modules.items()}
        result[V1] = f"from {PACKAGE} import *\n"
        result[PRIVATE] = self._private_module()
        return result

    def _module(self, name: str, own: dict[str, object]) -> str:
        text = ModuleText(name, self._taken(own), self._home)
        for child in self._children(name):
            text.add(f"from {name} import {child} as {child}")
        if name == PACKAGE:
            text.add("__version__: str")
        if is_open(name):
            text.add(f"def __getattr__(name: str) -> {text.local(ANY)}: ...")
        for leaf, value in own.items():
            if f"{name}.{leaf}" in {*self._modules, V1}:
                continue
            text.add(self._definition(text, leaf, value))
        return text.text(f"Public names below `{name}`.")

    def _children(self, name: str) -> list[str]:
        below = [*self._modules, V1]
        return [m.rpartition(".")[2] for m in below if m.rpartition(".")[0] == name]

    def _taken(self, own: dict[str, object]) -> set[str]:
        kinds = [value for value in own.values() if isinstance(value, type)]
        return {*own, *(name for kind in kinds for name in vars(kind))}

    def _home(self, dotted: str) -> str:
        """Where the stubs define what a module of the library does."""
        if not dotted.startswith(f"{PACKAGE}."):
            return dotted
        if dotted.count(".") == 1 and dotted.rpartition(".")[2] in self._modules[PACKAGE]:
            return dotted
        value = sources.found(dotted)
        known = self._homes.of(value) or self._homes.of(self._classes.shown_as(value))
        return known or self._private_home(dotted, value)

    def _private_home(self, dotted: str, value: object) -> str:
        """The name of what is not public. What only private classes use is of no use to users."""
        module, _, name = dotted.rpartition(".")
        if isinstance(value, type) and module != LIKES:
            name = value.__qualname__.replace(".", "")
        if dotted.endswith(".result"):
            name = f"{module.rpartition('.')[2]}Result"
        if self._private.get(name, value) is not value:
            name = f"{module.rpartition('.')[2].title().replace('_', '')}{name}"
        if name not in self._private:
            if self._is_closed and not is_message(value):
                return ANY
            self._private[name] = value
            self._with_bases(value)
        return f"{PRIVATE}.{name}"

    def _is_base(self, value: object) -> bool:
        """Whether users get at what a private class has: a public one is made of it."""
        return any(isinstance(kind, type) and value in kind.__mro__ for kind in self._values)

    def _with_bases(self, value: object) -> None:
        for base in value.__bases__ if isinstance(value, type) else ():
            if base.__module__.startswith(f"{PACKAGE}."):
                self._home(annotations.text(base, PACKAGE))

    def _definition(self, module: ModuleText, leaf: str, value: Any) -> str:
        if isinstance(value, ModuleType):
            return _module_import(leaf, value)
        if isinstance(value, OnDemand):
            return f"{leaf}: {module.local('types.ModuleType')}"
        home = self._homes.of(value) if is_defined(value) else None
        if home is not None and home != f"{module.name}.{leaf}":
            path, _, name = home.rpartition(".")
            if name == leaf:
                return f"from {path} import {leaf} as {leaf}"
            if isinstance(value, type):
                return f"{leaf} = {module.local(annotations.text(value, PACKAGE))}"
        return self._defined(module, leaf, value)

    def _defined(self, module: ModuleText, leaf: str, value: Any) -> str:
        if is_message(value):
            return written_message(module, leaf, value)
        if isinstance(value, type):
            return self._classes.written(module, leaf, value)
        if inspect.isroutine(value) or isinstance(value, functools._lru_cache_wrapper):
            return self._signatures.written(module, leaf, value)
        return f"{leaf}: {module.local(_constant_type(value))}"

    def _private_module(self) -> str:
        for name, origin in sources.names_of(LIKES).items():
            if origin == f"{LIKES}.{name}" and origin != MAYBE_NONE:
                self._home(origin)
        text = ModuleText(PRIVATE, self._taken(self._private), self._home)
        done: set[str] = set()
        while pending := [name for name in self._private if name not in done]:  # they add more
            for name in pending:
                self._is_closed = not self._is_base(self._private[name])
                text.add(self._private_definition(text, name, self._private[name]))
            done.update(pending)
        return text.text(
            "Types that public functions take or return, but that have no public name."
        )

    def _private_definition(self, text: ModuleText, name: str, value: object) -> str:
        if isinstance(value, TypeVar):
            return f'{name} = {text.local("typing.TypeVar")}("{name}")'
        if is_message(value):
            return written_message(text, name, value)
        alias = sources.assigned(LIKES, name)
        if alias is None:
            assert isinstance(value, type), f"{name} is neither a class nor one of {LIKES}"
            return self._classes.written(text, name, value)
        parts = annotations.members(ast.unparse(alias), LIKES)
        return f"{name}: {text.local('typing.TypeAlias')} = {text.local(' | '.join(parts))}"


def _module_import(leaf: str, value: ModuleType) -> str:
    path, _, name = value.__name__.rpartition(".")
    return f"from {path} import {name} as {leaf}" if path else f"import {name} as {leaf}"


def _constant_type(value: object) -> str:
    if isinstance(value, tuple):
        return "tuple[typing.Any, ...]"
    if isinstance(value, frozenset):
        return "frozenset[typing.Any]"
    return annotations.text(type(value), PACKAGE)


def write(directory: Path) -> None:
    """Write the stubs to a directory, in place of what is there."""
    importlib.import_module(PACKAGE)
    texts = Writer().texts()
    shutil.rmtree(directory, ignore_errors=True)
    for name, text in texts.items():
        path = directory.joinpath(*name.split(".")[1:])
        leads = any(other.startswith(f"{name}.") for other in texts)
        target = path / "__init__.pyi" if leads or name == PACKAGE else path.with_suffix(".pyi")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
