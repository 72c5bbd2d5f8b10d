"""What each ONNX operator is here: a file per family, a block per operator.

Importing this package fills the table of `thalweg.onnx.registry`.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
