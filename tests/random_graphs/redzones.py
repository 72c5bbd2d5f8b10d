"""Redzones around the memory that native code writes: a store that leaves its buffer is seen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

from thalweg.device.cpu import invocation, program

_WIDTH = 256
_MARK = 0xA5


class _Redzones:
    """NumPy for the module that allocates results and arenas: what it gives has redzones."""

    def __init__(self) -> None:
        self.whole: list[tuple[Any, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def empty(self, shape: Any, dtype: Any) -> Any:
        """Memory between two redzones."""
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        raw = np.full(count + 2 * _WIDTH, _MARK, np.uint8)
        self.whole.append((raw, count))
        return raw[_WIDTH : _WIDTH + count].view(dtype).reshape(shape)

    def check(self) -> None:
        """All redzones are as they were."""
        for raw, count in self.whole:
            assert (raw[:_WIDTH] == _MARK).all(), f"a store before a buffer of {count} bytes"
            assert (raw[_WIDTH + count :] == _MARK).all(), (
                f"a store after a buffer of {count} bytes"
            )


@contextmanager
def with_redzones() -> Iterator[None]:
    """Fail where native code wrote outside the results and arenas it was given."""
    redzones = _Redzones()
    with mock.patch.object(program, "np", redzones), mock.patch.object(invocation, "np", redzones):
        yield
    redzones.check()
