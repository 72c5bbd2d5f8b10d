"""The registry of public names: which object answers to which dotted name below `tf.`.

Modules register what they define with `@public(...)` or `publish_value(...)`; the root package
calls `install` once, which puts every name on the module a user finds it in.
"""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

Published = TypeVar("Published")

_registry: dict[str, object] = {}
_lazy: dict[str, Callable[[], object]] = {}

#: (an object) -> what users get for it
shown: list[Callable[[object], object]] = [lambda value: value]


def public(*names: str) -> Callable[[Published], Published]:
    """Register a function or class under names below `tf.`: `@public("tanh", "nn.tanh")`."""
    if not names:
        raise ValueError("public() needs at least one name.")

    def register(value: Published) -> Published:
        for name in names:
            publish_value(name, value)
        return value

    return register


def publish_value(name: str, value: object) -> None:
    """Register a constant, module or alias under one dotted name below `tf.`"""
    if not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f"{name!r} is not a dotted Python name.")
    bound = _registry.setdefault(name, value)
    if bound is not value:
        raise ValueError(f"The public name {name!r} is bound to {bound!r}; it cannot be {value!r}.")


def publish_lazily(name: str, load: Callable[[], object]) -> None:
    """Register a dotted name whose object is made when a program first asks for it."""
    if _lazy.setdefault(name, load) is not load:
        raise ValueError(f"The public name {name!r} is bound twice.")


def load(name: str) -> object:
    """The object of a name that was published lazily; an AttributeError if there is none."""
    if name not in _lazy:
        path, _, leaf = f"thalweg.{name}".rpartition(".")
        raise AttributeError(f"module {path!r} has no attribute {leaf!r}")
    return _lazy[name]()


def namespace() -> dict[str, object]:
    """All public names and what they are bound to, in name order."""
    return {name: _registry[name] for name in names()}


def names() -> list[str]:
    """All public names, sorted."""
    return sorted(_registry)


def lazy_names() -> list[str]:
    """The names whose objects are made on demand, sorted."""
    return sorted(_lazy)


def install(root: ModuleType) -> None:
    """Set every public name on `root` or on the submodule of `root` its dotted prefix names."""
    _registry.update({name: shown[0](value) for name, value in _registry.items()})
    for name, value in namespace().items():
        path, _, leaf = name.rpartition(".")
        setattr(_module_at(root, path), leaf, value)
    for path in {name.rpartition(".")[0] for name in _lazy}:
        _install_lazy(_module_at(root, path), path)


def _install_lazy(module: ModuleType, path: str) -> None:
    """Let a module look up the names that it does not have; once found, they stay."""

    def find(name: str) -> object:
        value = load(f"{path}.{name}" if path else name)
        setattr(module, name, value)
        return value

    module.__getattr__ = find


def _module_at(root: ModuleType, path: str) -> ModuleType:
    module = root
    for part in filter(None, path.split(".")):
        module = _child(module, part)
    return module


def _child(parent: ModuleType, name: str) -> ModuleType:
    """The module `parent.name`: the one published or imported under that name, else a new one."""
    full_name = f"{parent.__name__}.{name}"
    child = _own_module(parent, name) or sys.modules.get(full_name)
    if child is None:
        child = ModuleType(full_name, f"Public names below `{full_name}`.")
        child.__path__ = []  # only a package lets `import thalweg.app.flags` find its child
    sys.modules.setdefault(full_name, child)
    setattr(parent, name, child)
    return child


def _own_module(parent: ModuleType, name: str) -> ModuleType | None:
    """`parent.name` where that is a module of this package: a stray `import logging` is not."""
    bound = getattr(parent, name, None)
    if not isinstance(bound, ModuleType):
        return None
    package = parent.__name__.partition(".")[0]
    return bound if bound.__name__.startswith(f"{package}.") else None
