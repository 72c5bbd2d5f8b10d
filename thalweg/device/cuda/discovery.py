"""Finds the driver of this process: libcuda, its emulation, or none."""

from __future__ import annotations

import os
from functools import cache

from thalweg.device.cuda.driver import Driver
from thalweg.device.cuda.emulated import EmulatedDriver
from thalweg.device.cuda.libcuda import LibcudaDriver


@cache
def found_driver() -> tuple[Driver | None, bool]:
    """The driver, None where there is no GPU, and whether it is the emulation.

    THALWEG_CUDA=emulated asks for that one, and THALWEG_CUDA=0 for none. CUDA_VISIBLE_DEVICES hides
    GPUs, as it does from every program that uses CUDA.
    """
    wanted = os.environ.get("THALWEG_CUDA", "")
    if wanted == "0":
        return None, False
    if wanted != "emulated":
        return LibcudaDriver.found(), False
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")
    return (None if is_hidden else EmulatedDriver()), True
