"""Processes that share what is kept on disk, acted one after the other inside the tests' own."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.codegen import cache
from thalweg.codegen.cache import Kernels, Loaded
from thalweg.codegen.contraction import tune as tuned
from thalweg.codegen.contraction.tune import Winners
from thalweg.device.cpu.device import CpuDevice
from thalweg.lower.lowering import lower
from thalweg.platform.disk_cache import Disk


def assert_equal(one: Any, other: Any) -> None:
    """The values of two processes are the same."""
    for first, second in zip(one, other, strict=True):
        np.testing.assert_array_equal(first, second)


def with_layout(change: str) -> Callable[..., list[Loaded] | None]:
    """What finds the kernels of a CPU device, but with other scratch bytes or phases."""
    find = CpuDevice._find_named

    def others(self: CpuDevice, names: Any) -> Any:
        found = find(self, names) or []
        if change == "scratch":
            return [Loaded(kernel.functions, kernel.scratch + 64) for kernel in found]
        return [Loaded(kernel.functions * 2, kernel.scratch) for kernel in found]

    return others


class Processes:
    """Processes that share a folder, one after the other, all of them in this one.

    What a module lowers is counted, from the start of a process on.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, lowers: ModuleType) -> None:
        self.folder, self._patch = folder, monkeypatch
        self.lowered = 0

        def noted(*arguments: Any) -> Any:
            self.lowered += 1
            return lower(*arguments)

        monkeypatch.setattr(lowers, "lower", noted)

    @contextmanager
    def next(self) -> Generator[tf.Session]:
        """What a new process has: nothing in memory, a graph and a session of its own."""
        self._patch.setitem(cache._process, "kernels", Kernels(Disk(self.folder)))
        self._patch.setitem(tuned._process, "winners", Winners(Disk(self.folder)))
        self.lowered = 0
        with tf.Graph().as_default(), tf.Session() as session:
            yield session

    def run(self, build: Callable[[Any], Any], *arrays: Any) -> list[Any]:
        """What a function of a placeholder gives in a new process, array by array."""
        with self.next() as session:
            x = tf.placeholder(tf.float32, [None] * np.ndim(arrays[0]))
            y = build(x)
            return [session.run(y, {x: array}) for array in arrays]

    def files(self) -> list[Path]:
        """All that is kept."""
        return [path for path in self.folder.glob("??/*") if path.is_file()]

    def forge(self, path: Path, content: bytes) -> None:
        """Put other content into an entry, with the digest that is right for it."""
        Disk(self.folder).write(path.parent.name + path.stem, content)

    def kernels(self) -> set[Path]:
        """The machine code among it."""
        return {path for path in self.files() if b"\x7fELF" in path.read_bytes()}
