"""Pauses of the garbage collector where it would only traverse live objects repeatedly."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def gc_paused(are_kept: bool = False) -> Generator[None]:
    """Disable the garbage collector inside the block.

    Building a graph, its gradients or its lowered form allocates many objects that nearly all stay
    alive; the collector took up to a tenth of the time to traverse them. Code emission leaves
    cycles and must not be paused.

    With `are_kept`, as for an import, the new objects join the oldest generation: only a full
    collection traverses them.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if are_kept and not gc.get_freeze_count():  # else the program's frozen objects would thaw
            gc.freeze()
            gc.unfreeze()  # moves them to the oldest generation
        gc.enable()
