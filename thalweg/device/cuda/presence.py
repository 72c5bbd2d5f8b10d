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
    """The driver's library. Raises `OSError` where there is none."""
    return ctypes.CDLL(LIBRARY)


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
    try:
        library()
    except OSError:
        return ""
    return "libcuda"
