"""Whether this process has a driver of GPUs: asked by every program, and answered by the driver's
library alone."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any

LIBRARY = "libcuda.so.1"


@cache
def library() -> Any:
    """The driver's library; None where there is none. The search takes longer than all else that a
    session begins with."""
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError:
        return None


def driver_kind() -> str:
    """`libcuda`, `emulated`, or nothing where there is no driver.

    THALWEG_CUDA=emulated asks for that one, and THALWEG_CUDA=0 for none. CUDA_VISIBLE_DEVICES hides
    GPUs, as it does from every program that uses CUDA.
    """
    wanted = os.environ.get("THALWEG_CUDA", "")
    if wanted == "0":
        return ""
    if wanted == "emulated":
        is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")
        return "" if is_hidden else wanted
    return "" if library() is None else "libcuda"
