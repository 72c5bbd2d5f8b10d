"""Where programs find the libraries and TensorFlow's internal modules below `tf.`"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from types import ModuleType
from typing import Final

from thalweg import public
from thalweg.alias import finder, switch
from thalweg.alias.libraries.library import Library
from thalweg.alias.libraries.table import LIBRARIES

#: Modules of the alias that are found below `tf.` too.
_MODULES: Final = {
    "config": "thalweg.alias.contrib.config",
    "config.experimental": "thalweg.alias.contrib.config",
    "contrib.cluster_resolver": "thalweg.alias.contrib.cluster_resolver",
    "contrib.compiler.jit": "thalweg.alias.contrib.small",
    "contrib.distribute": "thalweg.alias.contrib.distribute",
    "contrib.summary": "thalweg.alias.contrib.summary",
    "contrib.tpu": "thalweg.alias.contrib.tpu",
    "distribute": "thalweg.alias.contrib.distribute",
    "distribute.experimental": "thalweg.alias.contrib.distribute",
    "feature_column": "thalweg.alias.feature_columns",
    "xla.experimental": "thalweg.alias.contrib.small",
}

#: Names of such modules in namespaces that have others.
_NAMES: Final = (
    (
        "contrib.layers",
        "thalweg.alias.contrib.columns",
        "SPARSE_FEATURE_CROSS_DEFAULT_HASH_KEY bucketized_column create_feature_spec_for_parsing "
        "crossed_column embedding_column input_from_feature_columns one_hot_column "
        "real_valued_column sparse_column_with_hash_bucket sparse_column_with_integerized_feature "
        "sparse_column_with_keys sparse_column_with_vocabulary_file weighted_sparse_column "
        "weighted_sum_from_feature_columns",
    ),
    ("contrib.layers", "thalweg.alias.contrib.encoders", "bow_encoder embed_sequence"),
    ("contrib.eager", "thalweg.alias.contrib.small", "list_devices"),
    (
        "contrib.framework",
        "thalweg.alias.contrib.small",
        "get_name_scope smart_cond smart_constant_value",
    ),
    ("contrib.nccl", "thalweg.alias.contrib.small", "all_sum"),
    ("contrib.staging", "thalweg.alias.contrib.small", "StagingArea"),
    (
        "",
        "thalweg.alias.contrib.small",
        "SequenceExample SyncReplicasOptimizer control_flow_v2_enabled disable_control_flow_v2 "
        "enable_control_flow_v2 timestamp",
    ),
)


def _name_in(source: str, name: str) -> object:
    return getattr(importlib.import_module(source), name)


def publish() -> None:
    """Register all places."""
    for library in LIBRARIES:
        for place, source in library.places.items():
            public.publish_package(place, functools.partial(_load, library, source))
    for place, source in _MODULES.items():
        public.publish_package(place, functools.partial(importlib.import_module, source))
    for place, source, listed in _NAMES:
        for name in listed.split():
            public.publish_lazily(
                f"{place}.{name}".lstrip("."), functools.partial(_name_in, source, name)
            )
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
