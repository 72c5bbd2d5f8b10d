"""Detects the driver of GPUs by its library alone, since every program does so."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any

LIBRARY = "libcuda.so.1"


@cache
def library() -> Any:
    """The driver's library; None if there is none. Cached, since the search is the slowest part of
    starting a session."""
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError:
        return None


def driver_kind() -> str:
    """`libcuda`, `emulated`, or an empty string if there is no driver.

    THALWEG_CUDA=emulated selects the emulation, THALWEG_CUDA=0 none. CUDA_VISIBLE_DEVICES hides
    GPUs, as in every program that uses CUDA.
    """
    wanted = os.environ.get("THALWEG_CUDA", "")
    if wanted == "0":
        return ""
    if wanted == "emulated":
        is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")
        return "" if is_hidden else wanted
    return "" if library() is None else "libcuda"
