"""Text of CUDA kernels to kernels of this process, on the emulated grid."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

from tests.codegen.kept import kept
from thalweg.codegen.cuda.compile import HostModule, host_code, load_host


def to_host(text: str, entries: Sequence[str]) -> HostModule:
    """The kernels of a module."""
    return _loaded(text, tuple(entries))


@lru_cache(64)  # tests run a kernel in several ways, of which some have the same text
def _loaded(text: str, entries: tuple[str, ...]) -> HostModule:
    return load_host(kept(partial(host_code, text), "host", text), entries)
