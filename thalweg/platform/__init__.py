"""Services below the graph: command-line flags, the app runner, logging, files, strings, caches.

Nothing here knows tensors; every other package may import it.
"""

from thalweg.platform import app, compat, flags, tf_logging, tracebacks
from thalweg.platform.files import examples, gfile, io_gfile, records, resource_loader

__all__ = [
    "app",
    "compat",
    "examples",
    "flags",
    "gfile",
    "io_gfile",
    "records",
    "resource_loader",
    "tf_logging",
    "tracebacks",
]
