"""What pytest loads in each process: the alias, and the names that left Python and NumPy."""

import importlib
import os

import thalweg.alias
from thalweg.alias import legacy

legacy.restore()
thalweg.alias.install(replace=True)
if package := os.environ.get("LIBRARY_PACKAGE"):
    importlib.import_module(package)
