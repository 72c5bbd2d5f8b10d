"""`tf.contrib.distributions`: what it has beyond `tf.distributions`, and names of before 1.0."""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
