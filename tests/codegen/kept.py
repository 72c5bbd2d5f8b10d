"""What LLVM makes of a text, kept on disk for later runs of the tests.

The text, the processor and the code that calls LLVM name what is kept: the tests of a text that did
not change compile nothing, and still run what was compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path

from thalweg.codegen.cache import shared_disk
from thalweg.codegen.machine import llvm, named
from thalweg.codegen.sources import own_digest


def kept(make: Callable[[], bytes], *key: str) -> bytes:
    """What a function makes of all that the key says, in this run or an earlier one."""
    parts = (_makers(), str(llvm().llvm_version_info), named("native").key, *key)
    name = sha256("\0".join(parts).encode()).hexdigest()
    disk = shared_disk()
    found = None if disk is None else disk.read(name)
    if found is None:
        found = make()
        if disk is not None:
            disk.write(name, found)
    return found


@cache
def _makers() -> str:
    """A digest of the code that calls LLVM."""
    own = [(Path(__file__).parent / name).read_text() for name in ("jit.py", "cuda/host.py")]
    return own_digest(("codegen/llvm", "codegen/cuda")) + "".join(own)
