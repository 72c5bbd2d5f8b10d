"""Where programs find the libraries and TensorFlow's internal modules below `tf.`"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from types import ModuleType

from thalweg import public
from thalweg.alias import finder, switch
from thalweg.alias.libraries.library import Library
from thalweg.alias.libraries.table import LIBRARIES


def publish() -> None:
    """Register all places."""
    for library in LIBRARIES:
        for place, source in library.places.items():
            public.publish_package(place, functools.partial(_load, library, source))
    columns = functools.partial(importlib.import_module, "thalweg.alias.feature_columns")
    public.publish_package("feature_column", columns)
    for path in finder.entrances():
        public.publish_package(path, functools.partial(finder.facade, path))


def _load(library: Library, source: str) -> ModuleType:
    """A module of a library."""
    if importlib.util.find_spec(library.package) is None:
        raise public.NotInstalled(
            f"it is in the package {library.requirement}: "
            f"pip install 'thalweg[{library.extra}]', or pip install '{library.requirement}'."
        )
    switch.install()
    library.load()
    return importlib.import_module(source)
