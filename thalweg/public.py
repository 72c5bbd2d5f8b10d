"""The registry of public names: which object answers to which dotted name below `tf.`.

Modules register what they define with `@public(...)` or `publish_value(...)`; the root package
calls `install` once, which puts every name on the module a user finds it in.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import TypeVar

from thalweg.absent import INSTEAD, NOTHING, row_of
from thalweg.suggestions import closest

Published = TypeVar("Published")

_registry: dict[str, object] = {}
_lazy: dict[str, Callable[[], object]] = {}
_ABSENT = object()
_packages: dict[str, Callable[[], object]] = {}
_modules: dict[str, str] = {}
_namespaces: dict[str, list[str]] = {}  # a path -> the modules to import for the names below it
_installed: dict[str, ModuleType] = {}  # the public modules by their paths, once there are any

#: (an object) -> what users get for it
shown: list[Callable[[object], object]] = [lambda value: value]


class NotInstalled(ImportError):
    """A package that has public names is not installed; the message says how to get it."""


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
    if _installed:
        _set(name, value)


def publish_lazily(name: str, load: Callable[[], object]) -> None:
    """Register a dotted name whose object is made when a program first asks for it."""
    if _lazy.setdefault(name, load) is not load:
        raise ValueError(f"The public name {name!r} is bound twice.")


def publish_from(module: str, *names: str) -> None:
    """Declare names that a module registers when it is imported: the first use of one imports it.

    For parts that few programs use, so that `import thalweg` need not wait for them. `"test.*"`
    stands for all names below `tf.test`, whichever they are.
    """
    for name in names:
        if name.endswith(".*"):
            _namespaces.setdefault(name.removesuffix(".*"), []).append(module)
        else:
            publish_lazily(name, partial(_imported, module, name))
            _modules[name] = module


def _imported(module: str, name: str) -> object:
    importlib.import_module(module)
    return _registry[name]


def _complete(path: str) -> None:
    """Import the modules that have names below a path."""
    for module in _namespaces.get(path, ()):
        importlib.import_module(module)
    _namespaces.pop(path, None)  # last: another thread that asks meanwhile waits for the import


def _complete_all() -> None:
    for path in list(_namespaces):
        _complete(path)


def publish_package(path: str, load: Callable[[], object]) -> None:
    """Register a module that is found when a program first asks for it, or for a name below it.

    Where there are public names below `path`, the module's names are added to them. `load` raises
    `NotInstalled` where it cannot be had.
    """
    if _packages.setdefault(path, load) is not load:
        raise ValueError(f"The public module {path!r} is bound twice.")


def _unknown(module: ModuleType, path: str, leaf: str) -> AttributeError:
    """The error for a name that a module does not have, with what to use instead."""
    text = f"module {module.__name__!r} has no attribute {leaf!r}"
    hint = "" if leaf.startswith("_") else _hint(path, leaf)
    return AttributeError(text + hint, obj=module)  # with a name, Python would add its own guess


def _hint(path: str, leaf: str) -> str:
    """What to use instead of an unknown name, as the end of a sentence."""
    name = f"{path}.{leaf}".lstrip(".")
    row = row_of(name)
    if name in NOTHING or (row is not None and not _is_module(row)):
        return f": TensorFlow's tf.{name} is not here{'.' if row is None else f'; {INSTEAD[row]}.'}"
    other = similar_public_name(leaf)
    if other is not None:
        return f". Did you mean tf.{other}?"
    meant = closest(leaf, children(path))
    if meant is not None:
        return f". Did you mean '{meant}'?"
    return "" if row is None else f": {INSTEAD[row]}."


def _is_module(name: str) -> bool:
    """Whether part of what TensorFlow has below a name is here."""
    return name in _parents()


def _pending() -> Iterator[str]:
    """For each path whose names are not imported yet, a name below it."""
    return (f"{path}.*" for path in _namespaces)


def similar_public_name(leaf: str) -> str | None:
    """The shortest public name that ends as an unknown one does."""
    _complete_all()
    known = {*_registry, *_modules}
    found = [name for name in known if name.endswith(f".{leaf}") or name == leaf]
    return min(found, key=lambda name: (name.count("."), len(name), name), default=None)


def children(path: str) -> set[str]:
    """The names in a public module: `children("nn")` has `relu` and `rnn_cell`."""
    _complete(path)
    start = f"{path}." if path else ""
    known = (*_registry, *_lazy, *_packages, *_pending())
    below = (name for name in known if name.startswith(start))
    return {name[len(start) :].partition(".")[0] for name in below}


def name_of(kind: type) -> str:
    """What users call a class: `tf.nn.rnn_cell.LSTMCell`, or its own name if it is not public."""
    found = [name for name, value in _registry.items() if value is kind]
    found.sort(key=lambda name: (name.startswith("contrib."), len(name)))
    return f"tf.{found[0]}" if found else kind.__qualname__


def namespace() -> dict[str, object]:
    """All public names and what they are bound to, in name order."""
    return {name: _registry[name] for name in names()}


def everything() -> dict[str, object]:
    """All public names and their objects, those that are made on demand too, in name order."""
    _complete_all()
    return dict(sorted((_registry | {name: make() for name, make in _lazy.items()}).items()))


def names() -> list[str]:
    """All public names, sorted. This imports the modules that only declared theirs."""
    _complete_all()
    for module in {*_modules.values()}:
        importlib.import_module(module)
    return sorted(_registry)


def registered(name: str) -> object | None:
    """What a name is bound to by a module that was imported."""
    return _registry.get(name)


def packages() -> list[str]:
    """The public modules that are found when a program first asks for them, sorted."""
    return sorted(_packages)


def install(root: ModuleType) -> None:
    """Set every public name on `root` or on the submodule of `root` its dotted prefix names.

    Names that are registered later are set at once.
    """
    _registry.update({name: shown[0](value) for name, value in _registry.items()})
    _installed.clear()
    _installed[""] = root
    _show_names(root, "")
    for name, value in sorted(_registry.items()):  # a module comes before its names
        _set(name, value)
    for name in (*_lazy, *_packages, *_pending()):
        path = name.rpartition(".")[0]
        if _own_package(path) is None:
            _module_at(path)
    parents = {*_parents()}
    for path in filter(parents.__contains__, _packages):
        _module_at(path)


def _parents() -> Iterator[str]:
    """The paths that names are below."""
    for name in (*_registry, *_pending()):
        while name := name.rpartition(".")[0]:
            yield name


def _set(name: str, value: object) -> None:
    path, _, leaf = name.rpartition(".")
    setattr(_module_at(path), leaf, value)


def _own_package(path: str) -> str | None:
    """The package that is imported when a program asks for `path` itself."""
    full_name = f"{_installed[''].__name__}.{path}"
    return full_name if full_name in _namespaces.get(path, ()) else None


def _show_names(module: ModuleType, path: str) -> None:
    """Let a module list its public names alone, and look up those that it does not have yet."""

    def find(name: str) -> object:
        if name == "__all__" or not name.startswith("_"):
            _complete(path)
        if name in vars(module):
            return vars(module)[name]
        full_name = f"{path}.{name}".lstrip(".")
        if _own_package(full_name):
            return _module_at(full_name)
        make = _lazy.get(full_name) or _packages.get(full_name)
        value = _from_package(path, name) if make is None else _loaded(make, full_name)
        if value is _ABSENT:
            raise _unknown(module, path, name)
        setattr(module, name, value)
        return value

    def listed() -> list[str]:
        return sorted({*children(path), *(name for name in vars(module) if _is_special(name))})

    module.__getattr__ = find
    module.__dir__ = listed


def _from_package(path: str, name: str) -> object:
    """What the module at a path has under a name, `_ABSENT` if there is none."""
    load = _packages.get(path)
    if load is None or name.startswith("_"):
        return _ABSENT
    return getattr(_loaded(load, f"{path}.{name}"), name, _ABSENT)


def _loaded(load: Callable[[], object], name: str) -> object:
    try:
        return load()
    except NotInstalled as error:
        # Given an object and no name, Python adds no guess of its own.
        raise AttributeError(f"tf.{name} is not here: {error}", obj=load) from error


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _module_at(path: str) -> ModuleType:
    """The public module of a path, which is made where there is none."""
    if path not in _installed:
        parent, _, name = path.rpartition(".")
        _installed[path] = _child(_module_at(parent), path, name)
        _show_names(_installed[path], path)
    return _installed[path]


def _child(parent: ModuleType, path: str, name: str) -> ModuleType:
    """The module `parent.name`: the one published or imported under that name, else a new one."""
    full_name = f"{parent.__name__}.{name}"
    package = _own_package(path)
    if package is not None and package not in sys.modules:
        _complete(path)
        return _module_at(path)
    child = _own_module(parent, name) or sys.modules.get(full_name)
    if child is None:
        child = ModuleType(full_name, f"Public names below `{full_name}`.")
        child.__path__ = []  # only a package lets `import thalweg.app.flags` find its child
    sys.modules.setdefault(full_name, child)
    setattr(parent, name, child)
    return child


def _own_module(parent: ModuleType, name: str) -> ModuleType | None:
    """`parent.name` where that is a module of this package: a stray `import logging` is not."""
    bound = vars(parent).get(name)  # nothing is loaded for this
    if not isinstance(bound, ModuleType):
        return None
    package = parent.__name__.partition(".")[0]
    return bound if bound.__name__.startswith(f"{package}.") else None
