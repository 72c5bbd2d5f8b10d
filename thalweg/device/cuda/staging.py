"""Transfers of large arrays from and to a GPU, in parts through pinned memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np

from thalweg.device.cuda.driver import Context
from thalweg.device.cuda.pinned import Pinned
from thalweg.platform.arrays import Array
from thalweg.platform.forks import freed_after_fork

STAGE = 4 << 20  # bytes of a part of a large array, and of its pinned memory
MAX_LANES = 8  # copying threads: a few of them saturate a server's bus


class Staging:
    """Transfers large arrays through pinned memory. The parts of an array are distributed over
    lanes, each with a thread and streams: while some copy on the host, which is slower on one
    thread than the bus, others transfer."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = freed_after_fork(threading.Lock())

    @cached_property
    def _lanes(self) -> list[_Lane]:
        count = max(2, min(MAX_LANES, (os.cpu_count() or 1) // 2))
        return [_Lane(self._context) for _ in range(count)]

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(len(self._lanes), "thalweg staging")

    def upload(self, address: int, value: Array) -> None:
        """Copy a contiguous array to an address of the device, and wait for the copy."""
        self._each(value, lambda lane, part, start: lane.upload(address + start, part))

    def download(self, value: Array, address: int) -> None:
        """Copy from an address of the device to a contiguous array."""
        self._each(value, lambda lane, part, start: lane.download(part, address + start))

    def _each(self, value: Array, move: Callable[[_Lane, Array, int], None]) -> None:
        """Transfer all parts of an array."""
        content = value.reshape(-1).view(np.uint8)
        parts = [(content[at : at + STAGE], at) for at in range(0, len(content), STAGE)]

        def run(number: int) -> None:
            lane = self._lanes[number]
            for part, start in parts[number :: len(self._lanes)]:
                move(lane, part, start)
            lane.wait()

        with self._lock:
            list(self._threads.map(run, range(min(len(self._lanes), len(parts)))))


class _Lane:
    """Double-buffered pinned memory: one part is copied on the host while the other transfers."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._streams = context.stream(), context.stream()
        self._stages = [Pinned(context, STAGE) for _ in self._streams]
        self._waiting: list[Array | None] = [None, None]  # destinations of downloads
        self._half = 0

    def _next(self) -> int:
        """Wait until the least recently used half is free; returns its index."""
        self._half = 1 - self._half
        self._wait_for(self._half)
        return self._half

    def _wait_for(self, half: int) -> None:
        self._context.wait(self._streams[half])
        part, self._waiting[half] = self._waiting[half], None
        if part is not None:
            part[:] = self._stages[half].array[: len(part)]

    def upload(self, address: int, part: Array) -> None:
        """Start the upload of a part."""
        half = self._next()
        stage = self._stages[half]
        stage.array[: len(part)] = part
        self._context.upload(address, stage.address, len(part), self._streams[half])

    def download(self, part: Array, address: int) -> None:
        """Start the download of a part, which is filled when its half is reused or by `wait`."""
        half = self._next()
        self._context.download(self._stages[half].address, address, len(part), self._streams[half])
        self._waiting[half] = part

    def wait(self) -> None:
        """Wait until all transfers are complete."""
        self._wait_for(1 - self._half)
        self._wait_for(self._half)
