"""Finds the driver of this process: libcuda, its emulation, or none."""

from __future__ import annotations

from functools import cache

from thalweg.device.cuda.driver import Driver
from thalweg.device.cuda.emulated import EmulatedDriver
from thalweg.device.cuda.libcuda import LibcudaDriver
from thalweg.device.cuda.presence import driver_kind


@cache
def find_driver() -> tuple[Driver | None, bool]:
    """The driver, or None without a GPU; and whether it is the emulation."""
    kind = driver_kind()
    if kind == "emulated":
        return EmulatedDriver(), True
    return (LibcudaDriver.find() if kind else None), False
