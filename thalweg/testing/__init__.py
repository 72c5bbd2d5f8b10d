"""`tf.test`: what programs use to test themselves. Test cases with sessions and array assertions,
gradient checks, benchmarks, and comparisons of graphs."""

import importlib

from thalweg.public import publish_lazily
from thalweg.testing import benchmark, case, clusters, gradient_checker, graphs, program

__all__ = ["benchmark", "case", "clusters", "gradient_checker", "graphs", "program"]


# unittest.mock is slow to import, and few programs want it.
publish_lazily("test.mock", lambda: importlib.import_module("unittest.mock"))
