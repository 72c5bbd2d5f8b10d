"""Text of CUDA kernels to kernels of this process, on the emulated grid."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tests.codegen.kept import kept
from thalweg.codegen.cuda.compile import HostModule, host_code, load_host


def to_host(text: str, entries: Sequence[str]) -> HostModule:
    """The kernels of a module."""
    return load_host(kept(partial(host_code, text), "host", text), entries)
