"""What there is to say about a package of other people: where it is found, what is mended in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple


class Patch(NamedTuple):
    """A change of a library's source when it is imported.

    Its files stay as they are. A change keeps the number of lines, so that tracebacks are right.
    """

    modules: str  # a pattern: "keras.engine.*"
    old: str  # a regular expression
    new: str
    reason: str

    def holds_for(self, module: str) -> bool:
        """Whether the source of a module may need the change."""
        return fnmatchcase(module, self.modules)

    def apply(self, source: str) -> str:
        """The source with the change."""
        return re.sub(self.old, self.new, source)


#: What the standard library and NumPy took away, for libraries that use it.
ABSTRACT_CLASSES = (
    r"\bcollections\.(?=(?:Callable|Container|Hashable|Iterable|Iterator|Mapping|MutableMapping"
    r"|Sequence|Set|Sized)\b)"
)


def outdated(package: str) -> list[Patch]:
    """The patches that every package of that time needs."""
    return [
        Patch(
            f"{package}*",
            ABSTRACT_CLASSES,
            "collections.abc.",
            "Python 3.10 moved the abstract classes of collections to collections.abc",
        ),
        Patch(
            f"{package}*",
            r"from collections import (Iterable|Mapping|Sequence|Callable)\b",
            r"from collections.abc import \1",
            "Python 3.10 moved the abstract classes of collections to collections.abc",
        ),
        Patch(
            f"{package}*",
            r"\binspect\.getargspec\b(?! *=)",
            "inspect.getfullargspec",
            "Python 3.11 removed inspect.getargspec",
        ),
        Patch(
            f"{package}*",
            r"\bnp\.(bool|int|float|object|str)\b(?!_)",
            r"\1",
            "NumPy 1.24 removed its names of Python's own types",
        ),
        Patch(f"{package}*", r"\bnp\.Inf\b", "np.inf", "NumPy 2 has one spelling of infinity"),
        Patch(f"{package}*", r"\bnp\.NaN\b", "np.nan", "NumPy 2 has one spelling of NaN"),
        Patch(f"{package}*", r"\bnp\.product\b", "np.prod", "NumPy 2 removed np.product"),
        Patch(f"{package}*", r"\bnp\.unicode_\b", "np.str_", "NumPy 2 removed np.unicode_"),
        Patch(f"{package}*", r"\bnp\.string_\b", "np.bytes_", "NumPy 2 removed np.string_"),
        Patch(
            f"{package}*", r"\bnp\.asscalar\(", "np.ndarray.item(", "NumPy 1.23 removed asscalar"
        ),
        Patch(
            f"{package}*",
            r"from distutils\.version import (StrictVersion|LooseVersion)",
            r"from thalweg.alias.libraries.versions import Version as \1",
            "Python 3.12 removed distutils",
        ),
    ]


@dataclass
class Library:
    """A package, the extra that installs it, and what it answers to below `tf.`

    Args:
        package: the name that it is imported by.
        requirement: what pip installs, pinned.
        extra: the extra of Thalweg that asks for it.
        places: path below `tf.` -> the module that is found there.
        patches: what is changed in its source.
        loaded: called once the package is imported.
    """

    package: str
    requirement: str
    extra: str
    places: Mapping[str, str]
    patches: Sequence[Patch] = ()
    loaded: Callable[[], None] = lambda: None
    _is_loaded: bool = field(default=False, init=False)

    def load(self) -> None:
        """Import the package, once."""
        if self._is_loaded:
            return
        self._is_loaded = True  # what is done then may ask for the library again
        __import__(self.package)
        self.loaded()
