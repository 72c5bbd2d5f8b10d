"""The tests. What is set here holds before the package is imported."""

import os
import sys
from pathlib import Path

os.environ.setdefault("THALWEG_VERIFY", "1")
# Matrices of tests are small, and the threads of NumPy's BLAS spin where they have nothing to do.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    # Not beside the sources, then: without any bytecode each process, those that tests start too,
    # would spend seconds on compiling the package, and ten on the tests.
    _folder = Path(__file__).resolve().parents[1] / ".pytest_cache" / "bytecode"
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(_folder)
    sys.dont_write_bytecode = False
