"""`tf.test`: what programs use to test themselves. Test cases with sessions and array assertions,
gradient checks, benchmarks, and comparisons of graphs."""

import importlib

from thalweg.public import publish_from, publish_lazily
from thalweg.testing import benchmark, case, gradient_checker, graphs, program

__all__ = ["benchmark", "case", "gradient_checker", "graphs", "program"]


# Slow to import, and few programs want them.
publish_from("thalweg.testing.clusters", "test.create_local_cluster")
publish_lazily("test.mock", lambda: importlib.import_module("unittest.mock"))
