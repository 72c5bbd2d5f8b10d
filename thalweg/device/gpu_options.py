"""How a session wants to use GPUs."""

from __future__ import annotations

import os
from dataclasses import dataclass, field


@dataclass
class Arithmetic:
    """How GPUs compute in sessions that come later."""

    deterministic: bool = os.environ.get("TF_DETERMINISTIC_OPS", "").lower() in ("1", "true")
    tf32: bool = False


#: What `tf.config.experimental` sets.
ARITHMETIC = Arithmetic()


@dataclass(frozen=True)
class GpuOptions:
    """What `tf.GPUOptions` says, as far as it matters here, and what holds for the process."""

    memory_fraction: float = 0.0  # of each GPU, that the process may use; 0 for all
    allow_growth: bool = True  # take memory as it is needed
    visible: str = ""  # indices of those to use, with commas; all if it is empty
    deterministic: bool = field(default_factory=lambda: ARITHMETIC.deterministic)
    tf32: bool = field(default_factory=lambda: ARITHMETIC.tf32)
