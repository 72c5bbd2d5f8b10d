"""`tf.distributions`: distributions with batches of parameters, and the divergences between them.

A distribution is graph code: its parameters are tensors, and so are its samples, densities and
moments. Importing this package registers the public names of its modules.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
