"""The modules below `tensorflow`, made when a program imports them.

`tensorflow` itself is `Root`, which passes names on to Thalweg. Of what is below it, a public
namespace (`tensorflow.nn`, `tensorflow.contrib.rnn`) is the module of Thalweg, a package of other
people (`tensorflow.keras`) that package, and an internal module a `Facade`, whose names are looked
up when they are asked for.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Iterator, MutableSequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from thalweg.alias import names
from thalweg.alias.paths import MODULES, PACKAGES
from thalweg.platform.caches import memoized

NAME: Final = "tensorflow"
#: The release whose names and behaviour programs find here.
VERSION: Final = "1.15.5"
_COMPAT: Final = "compat"
_V1: Final = "compat.v1"  # there is only this one API
_V2: Final = "compat.v2"
_ABSL: Final = "thalweg.alias.inside.framework.absl_flags"
_FLAGS: Final = {
    "app": "app",
    "flags": "flags",
    "python.platform.app": "app",
    "python.platform.flags": "flags",
}


class Root(ModuleType):
    """The module `tensorflow`: Thalweg, and the version that programs ask for."""

    __path__: MutableSequence[str] = []  # noqa: RUF012 - of a package that has no folder
    VERSION = __version__ = VERSION
    GIT_VERSION = __git_version__ = f"v{VERSION}"

    def __getattr__(self, name: str) -> Any:
        return getattr(names.root(), name)

    def __dir__(self) -> list[str]:
        return dir(names.root())


#: Names that mean something else in the API of TensorFlow 2.
_IN_V2: Final = {"where": "where_v2"}


class V2(ModuleType):
    """The module `tensorflow.compat.v2`: Thalweg, with the meanings of TensorFlow 2 where libraries
    for TensorFlow 1 count on them.
    """

    __path__: MutableSequence[str] = []  # noqa: RUF012 - of a package that has no folder

    def __getattr__(self, name: str) -> Any:
        return getattr(names.root(), _IN_V2.get(name, name))


class Compat(ModuleType):
    """The module `tensorflow.compat`: Thalweg's, but for `v1`, which is `tensorflow` itself."""

    __path__: MutableSequence[str] = []  # noqa: RUF012 - of a package that has no folder

    def __init__(self, root: Root) -> None:
        super().__init__(f"{NAME}.{_COMPAT}")
        self.v1: Final = root
        self.v2: Final = V2(f"{NAME}.{_V2}")

    def __getattr__(self, name: str) -> Any:
        return getattr(names.root().compat, name)


class Facade(ModuleType):
    """An internal module of TensorFlow; its names are looked up by the table of `paths`."""

    __path__: MutableSequence[str] = []  # noqa: RUF012 - of a package that has no folder

    def __init__(self, path: str) -> None:
        super().__init__(f"{NAME}.{path}", f"TensorFlow's {path}, as far as Thalweg has it.")
        self.path: Final = path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        path = f"{self.path}.{name}"
        value = module_at(path) if path in _PATHS else self._found(name)
        setattr(self, name, value)
        return value

    def _found(self, name: str) -> Any:
        """A name of the module: its own, or a module that TensorFlow's imports."""
        try:
            return names.find(self.path, name)
        except AttributeError:
            imported = _IMPORTED.get(name)
            if imported is None or self.path in _AROUND:
                raise
            return module_at(imported)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers imports of `tensorflow` and of what is below it."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """The spec of a module that Thalweg has a counterpart of; None for all others."""
        if fullname == NAME:
            return ModuleSpec(NAME, self, origin="thalweg", is_package=True)
        if not fullname.startswith(f"{NAME}."):
            return None
        module = module_at(fullname.removeprefix(f"{NAME}."))
        if module is None:
            raise ModuleNotFoundError(
                f"No module named {fullname!r}: Thalweg has no counterpart of it.", name=fullname
            )
        return ModuleSpec(fullname, Borrowed(module), origin="thalweg", is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module `tensorflow`, whose flags are absl's where absl is installed."""
        root = Root(spec.name)
        vars(root)[_COMPAT] = Compat(root)
        if _exists("absl.flags") and _exists("absl.app"):
            vars(root).update(importlib.import_module(_ABSL).modules())
        return root

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


class Borrowed(importlib.abc.Loader):
    """Puts a module that exists under a second name, and leaves it as it is."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # the import system has just put its own in this place


def module_at(path: str) -> ModuleType | None:
    """The module at a path below `tensorflow`, or None."""
    if path in (_COMPAT, _V1, _V2):
        root = sys.modules[NAME]
        return {_V1: root, _V2: root.compat.v2}.get(path, root.compat)
    path = path.removeprefix(f"{_V1}.").removeprefix(f"{_V2}.")
    flags = vars(sys.modules[NAME]).get(_FLAGS.get(path, "")) if NAME in sys.modules else None
    if flags is not None:
        return flags
    if path in _PATHS:
        return facade(path)
    return _public_module(path) or _package_module(path)


@memoized(limit=10_000)  # more than the table has: a module is one object
def facade(path: str) -> Facade:
    """The one facade at a path of the table."""
    return Facade(path)


def _public_module(path: str) -> ModuleType | None:
    found: Any = names.root()
    for part in path.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, ModuleType) else None


def _package_module(path: str) -> ModuleType | None:
    """A module of a package of other people, by the path it had in TensorFlow."""
    for start, package in PACKAGES.items():
        if not f"{path}.".startswith(f"{start}."):
            continue
        name = f"{package}{path.removeprefix(start)}"
        if name in sys.modules or _exists(name):
            return importlib.import_module(name)
    return None


def _exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def entrances() -> Iterator[str]:
    """The facades that stand below a public namespace: `python`, `contrib.rnn.python`."""
    return (path for path in sorted(_PATHS) if path.rpartition(".")[0] not in _PATHS)


def _all_paths() -> set[str]:
    """Every path of the table and the packages around it, but for what is public."""
    listed = {f"{start}.{name}".lstrip(".") for start in MODULES for name in MODULES[start].split()}
    around = {path.rsplit(".", n)[0] for path in listed for n in range(path.count(".") + 1)}
    return {path for path in listed | around if _is_internal(path)}


def _is_internal(path: str) -> bool:
    """Whether a path is TensorFlow's inside: `contrib.rnn` is not, `contrib.rnn.python` is."""
    first, *rest = path.split(".")
    return first != "contrib" or "python" in rest or path.startswith(_UNPUBLISHED)


#: Parts of contrib that are here for what a library imports from them, not as a namespace.
_UNPUBLISHED: Final = ("contrib.cudnn_rnn", "contrib.learn", "contrib.nn", "contrib.testing")
_PATHS: Final = frozenset(_all_paths())
#: The packages among the paths, which import none of their modules under other names.
_AROUND: Final = frozenset(path.rpartition(".")[0] for path in _PATHS)
#: Modules by the names under which TensorFlow's modules import each other; the outer ones win.
_IMPORTED: Final = {
    path.rpartition(".")[2]: path
    for path in sorted(_PATHS - _AROUND, key=lambda path: path.count("."), reverse=True)
    if path.startswith("python.")
}
