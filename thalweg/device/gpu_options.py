"""How a session wants to use GPUs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GpuOptions:
    """What `tf.GPUOptions` says, as far as it matters here."""

    memory_fraction: float = 0.0  # of each GPU, that the process may use; 0 for all
    allow_growth: bool = True  # take memory as it is needed
    visible: str = ""  # indices of those to use, with commas; all if it is empty
