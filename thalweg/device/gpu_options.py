"""Options for the use of GPUs: of the process, and of a session."""

from __future__ import annotations

import os
from dataclasses import dataclass, field


@dataclass
class Arithmetic:
    """How GPUs compute in sessions created from now on."""

    deterministic: bool = os.environ.get("TF_DETERMINISTIC_OPS", "").lower() in ("1", "true")
    tf32: bool = False


#: Set by `tf.config.experimental`.
ARITHMETIC = Arithmetic()


@dataclass(frozen=True)
class GpuOptions:
    """The supported fields of `tf.GPUOptions`, and the arithmetic options of the process."""

    memory_fraction: float = 0.0  # share of each GPU's memory that the process may use; 0: all
    allow_growth: bool = True  # allocate memory on demand
    visible: str = ""  # comma-separated indices of the GPUs to use; empty: all
    deterministic: bool = field(default_factory=lambda: ARITHMETIC.deterministic)
    tf32: bool = field(default_factory=lambda: ARITHMETIC.tf32)
