"""NumPy's products and factorisations, limited to one BLAS thread.

The threads of NumPy's BLAS keep spinning after a call and would take the cores of a step's own
threads. Kernels use BLAS only through this module (a test searches the package for other uses); the
user's own NumPy calls keep all BLAS threads.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from thalweg.platform.forks import renewed_after_fork

_PREFIXES, _SUFFIXES = ("scipy_openblas", "openblas"), ("64_", "_64", "")


class _BlasThreads:
    """The number of BLAS threads: one while any thread is inside `single`."""

    def __init__(self) -> None:
        self.renew_locks()
        renewed_after_fork(self)
        self._users, self._saved = 0, 0

    def renew_locks(self) -> None:
        """Replace the lock by a new one, which is not held."""
        self._lock = threading.Lock()

    @functools.cached_property
    def _functions(self) -> tuple[Callable[[], int], Callable[[int], None]] | None:
        """The getter and the setter of the number of threads, if BLAS is OpenBLAS."""
        folder = Path(np.__file__).parent
        folders = [folder.with_name("numpy.libs"), folder / ".dylibs", folder / ".libs"]
        for path in (path for folder in folders for path in folder.glob("*openblas*")):
            library = ctypes.CDLL(str(path))
            for prefix, suffix in itertools.product(_PREFIXES, _SUFFIXES):
                names = [f"{prefix}_{verb}_num_threads{suffix}" for verb in ("get", "set")]
                if hasattr(library, names[1]):
                    return getattr(library, names[0]), getattr(library, names[1])
        return None

    @contextmanager
    def single(self) -> Generator[None]:
        """Use one BLAS thread inside the block."""
        if self._functions is None:
            yield
            return
        get_count, set_count = self._functions
        with self._lock:
            if not self._users:
                self._saved = get_count()
                set_count(1)
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    set_count(self._saved)


_threads = _BlasThreads()


def _single_threaded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A NumPy function that uses no BLAS threads but the caller's."""

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        with _threads.single():
            return function(*args, **options)

    return run


matmul = _single_threaded(np.matmul)
tensordot = _single_threaded(np.tensordot)
cholesky = _single_threaded(np.linalg.cholesky)
det = _single_threaded(np.linalg.det)
eig = _single_threaded(np.linalg.eig)
eigh = _single_threaded(np.linalg.eigh)
eigvalsh = _single_threaded(np.linalg.eigvalsh)
inv = _single_threaded(np.linalg.inv)
pinv = _single_threaded(np.linalg.pinv)
qr = _single_threaded(np.linalg.qr)
slogdet = _single_threaded(np.linalg.slogdet)
solve = _single_threaded(np.linalg.solve)
svd = _single_threaded(np.linalg.svd)
