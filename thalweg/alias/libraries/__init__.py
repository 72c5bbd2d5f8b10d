"""Packages of other people that were a part of TensorFlow, and where programs find them.

They import `tensorflow` themselves, so the alias must be on: it is turned on when one of them is
first asked for, where no TensorFlow is installed. What later Pythons and NumPys broke in them is
mended when they are imported: the file of a library lists each patch with its reason.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from types import ModuleType
from typing import Final

from thalweg import public
from thalweg.alias import finder
from thalweg.alias.libraries import estimator, keras, slim, sonnet
from thalweg.alias.libraries.library import Library, Patch

LIBRARIES: Final[tuple[Library, ...]] = (
    keras.LIBRARY,
    slim.LIBRARY,
    estimator.LIBRARY,
    sonnet.LIBRARY,
)


def publish() -> None:
    """Register the places of all libraries and of TensorFlow's internal modules below `tf.`"""
    for library in LIBRARIES:
        for place, source in library.places.items():
            public.publish_package(place, functools.partial(_load, library, source))
    for path in finder.entrances():
        public.publish_package(path, functools.partial(finder.facade, path))


def patches() -> list[Patch]:
    """The patches of all libraries."""
    return [patch for library in LIBRARIES for patch in library.patches]


def _load(library: Library, source: str) -> ModuleType:
    """A module of a library."""
    from thalweg.alias import switch  # which asks this module for the patches

    if importlib.util.find_spec(library.package) is None:
        raise public.NotInstalled(
            f"it is in the package {library.requirement}: "
            f"pip install 'thalweg[{library.extra}]', or pip install '{library.requirement}'."
        )
    switch.install()
    library.load()
    return importlib.import_module(source)
