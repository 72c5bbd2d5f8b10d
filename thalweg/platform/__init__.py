"""What programs expect around a graph: command-line flags, an entry point, logging, files, strings.

Nothing here knows what a tensor is; everything above may use it.
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
