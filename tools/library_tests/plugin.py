"""What pytest loads in each process: the alias, and the names that left Python and NumPy."""

import importlib
import os
import sys

import thalweg.alias
from thalweg.alias import legacy

legacy.restore()
thalweg.alias.install(replace=True)
if package := os.environ.get("LIBRARY_PACKAGE"):
    importlib.import_module(package)


def pytest_collection_finish() -> None:
    """Parse no flags of pytest's as the tests' own: their programs would do so first."""
    sys.argv[1:] = []
    if "absl.flags" in sys.modules:
        sys.modules["absl.flags"].FLAGS(sys.argv)
