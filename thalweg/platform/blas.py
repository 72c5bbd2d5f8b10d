"""NumPy's products and factorisations, on one thread.

The threads of NumPy's BLAS go on spinning after they were used: a step that wakes them loses the
cores that its own threads run on. Kernels reach BLAS through this module alone (a test reads the
package for other ways); what a program does with NumPy by itself is left as it was.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from thalweg.platform.forks import renewed_after_fork

_PREFIXES, _SUFFIXES = ("scipy_openblas", "openblas"), ("64_", "_64", "")


class _Threads:
    """How many threads BLAS has: one as long as anybody is inside `one`."""

    def __init__(self) -> None:
        self.renew_locks()
        renewed_after_fork(self)
        self._inside, self._before = 0, 0

    def renew_locks(self) -> None:
        """Have a lock that nobody holds."""
        self._lock = threading.Lock()

    @functools.cached_property
    def _functions(self) -> tuple[Callable[[], int], Callable[[int], None]] | None:
        """What gives the number of threads and what sets it, where BLAS is OpenBLAS."""
        folder = Path(np.__file__).parent
        places = [folder.with_name("numpy.libs"), folder / ".dylibs", folder / ".libs"]
        for path in (path for place in places for path in place.glob("*openblas*")):
            library = ctypes.CDLL(str(path))
            for name in (f"{p}_{{}}_num_threads{s}" for p in _PREFIXES for s in _SUFFIXES):
                if hasattr(library, name.format("set")):
                    return getattr(library, name.format("get")), getattr(
                        library, name.format("set")
                    )
        return None

    @contextmanager
    def one(self) -> Generator[None]:
        """Have one thread; afterwards, as many as there were."""
        if self._functions is None:
            yield
            return
        get, change = self._functions
        with self._lock:
            if not self._inside:
                self._before = get()
                change(1)
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    change(self._before)


_threads = _Threads()


def _alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of NumPy that runs on the caller's thread alone."""

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        with _threads.one():
            return function(*args, **options)

    return run


matmul = _alone(np.matmul)
tensordot = _alone(np.tensordot)
cholesky = _alone(np.linalg.cholesky)
det = _alone(np.linalg.det)
eig = _alone(np.linalg.eig)
eigh = _alone(np.linalg.eigh)
eigvalsh = _alone(np.linalg.eigvalsh)
inv = _alone(np.linalg.inv)
pinv = _alone(np.linalg.pinv)
qr = _alone(np.linalg.qr)
slogdet = _alone(np.linalg.slogdet)
solve = _alone(np.linalg.solve)
svd = _alone(np.linalg.svd)
