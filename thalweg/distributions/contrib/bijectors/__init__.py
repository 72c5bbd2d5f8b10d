"""`tf.contrib.distributions.bijectors`: invertible functions of tensors, with their volumes.

A bijector maps samples forward, values back, and says by how much it stretches space around a
point. `TransformedDistribution` makes a new distribution from one that is known with them.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
