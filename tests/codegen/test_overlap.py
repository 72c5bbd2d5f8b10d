"""Kernels promise that their buffers lie apart: what they are given is looked at as they run."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.codegen.steps import STEPS
from thalweg.codegen import cache
from thalweg.codegen.cache import Kernels, Loaded
from thalweg.codegen.llvm.emitted import Request
from thalweg.codegen.machine import CpuTarget
from thalweg.device.cpu.pool import Entry, StepTable, default_pool
from thalweg.ir.dynamic import Dynamic
from thalweg.ir.kernel import Argument, Kernel
from thalweg.platform.disk_cache import disk_of_environment
from thalweg.runtime import program_cache


class Known(Kernels):
    """Kernels, and which of them has which address."""

    def __init__(self) -> None:
        super().__init__(disk_of_environment())
        self.at: dict[int, Kernel] = {}

    def load(self, requests: Sequence[Request], target: CpuTarget) -> list[Loaded]:
        result = super().load(requests, target)
        for request, kernel in zip(requests, result, strict=True):
            self.at |= dict.fromkeys(kernel.functions, request.make.args[0])
        return result


def spans(entry: Entry, kernel: Any) -> Iterator[tuple[int, int, Argument]]:
    """Where the arguments of a call begin and end."""
    words = (ctypes.c_int64 * (1 + len(kernel.arguments))).from_address(entry.arguments)
    for argument in kernel.arguments:
        start = words[1 + argument.position]
        yield start, start + argument.size * np.dtype(argument.dtype).itemsize, argument


def overlaps(entry: Entry, kernel: Any) -> list[tuple[Argument, Argument]]:
    if any(isinstance(argument.size, Dynamic) for argument in kernel.arguments):
        return []
    found = sorted(spans(entry, kernel), key=lambda span: span[:2])
    return [
        (one, other)
        for number, (_, end, one) in enumerate(found)
        for start, _, other in found[number + 1 :]
        if start < end and (one.written or other.written)
    ]


@pytest.mark.parametrize("name", STEPS)
def test_what_a_kernel_writes_is_in_no_other_buffer_of_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    default_pool()
    seen: list[Entry] = []
    monkeypatch.setitem(cache._process, "kernels", known := Known())
    # A program that is found names its kernels only.
    monkeypatch.setattr(program_cache, "shared_disk", lambda: None)
    run = StepTable.run

    def watched(self: StepTable) -> int:
        for entry in self.entries:
            kernel = known.at.get(entry.function) if isinstance(entry, Entry) else None
            if kernel is not None and hasattr(kernel, "arguments"):
                assert overlaps(entry, kernel) == []
                seen.append(entry)
        return run(self)

    monkeypatch.setattr(StepTable, "run", watched)
    with tf.Graph().as_default(), tf.Session() as session:
        fetches, feeds = STEPS[name]()
        session.run(tf.global_variables_initializer())
        session.run(fetches, feeds)
    assert seen or "loop" in name
