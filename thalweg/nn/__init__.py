"""Neural network functions made of ops: general convolutions, poolings, norms, losses, cells.

Importing this package registers the public names of its modules; the rest of `tf.nn` is ops,
which register theirs.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
