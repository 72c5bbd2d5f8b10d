"""The public modules and what is in them, and where each class and function is at home."""

from __future__ import annotations

from collections import defaultdict
from types import ModuleType

from thalweg import public

PACKAGE = "thalweg"
#: Where the classes are that have no public name, but that public functions take or return.
PRIVATE = f"{PACKAGE}._types"


class OnDemand:
    """A module that is found when a program asks for it, if it is installed at all: of what is in
    it, nothing is known here."""


def modules() -> dict[str, dict[str, object]]:
    """The names of each public module (`thalweg.nn`) and their values."""
    found: dict[str, dict[str, object]] = defaultdict(dict)
    for name, value in public.everything().items():
        path, _, leaf = f"{PACKAGE}.{name}".rpartition(".")
        found[path][leaf] = value
    for name in (f"{PACKAGE}.{path}" for path in public.packages()):
        if not any(path == name or path.startswith(f"{name}.") for path in [*found]):
            path, _, leaf = name.rpartition(".")
            found[path][leaf] = OnDemand()
    for path in [*found]:
        while path != PACKAGE:
            path = path.rpartition(".")[0]
            found.setdefault(path, {})
    return dict(sorted(found.items()))


def is_open(module: str) -> bool:
    """Whether a public module has the names of another package too."""
    return module.removeprefix(f"{PACKAGE}.") in public.packages()


class Homes:
    """The module and the name under which a value is defined in the stubs."""

    def __init__(self, found: dict[str, dict[str, object]]) -> None:
        self._homes: dict[int, str] = {}
        self._values: dict[str, object] = {}
        names = [
            (f"{path}.{leaf}", value) for path, own in found.items() for leaf, value in own.items()
        ]
        for name, value in sorted(names, key=lambda pair: _preference(*pair)):
            if is_defined(value):
                self._homes.setdefault(id(value), name)

    def of(self, value: object) -> str | None:
        """The dotted name of a value that is public."""
        return self._homes.get(id(value))


def is_defined(value: object) -> bool:
    """Whether a value has a definition of its own, and is not a constant or a module."""
    return callable(value) and not isinstance(value, ModuleType)


def _preference(name: str, value: object) -> tuple[bool, bool, int, str]:
    """Names that are not of `contrib`, are the value's own, and are short come first."""
    own = getattr(value, "__name__", "")
    return ".contrib." in name, not name.endswith(f".{own}"), name.count("."), name
