"""The collector of cycles, where it would only look again and again through what lives on."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Generator[None]:
    """Without the collector: making a graph, its gradients or its lowered form makes many objects,
    of which nearly all live on, and up to a tenth of the time went into looking through them.
    Emitting code is another matter: it leaves cycles, which would take up memory if nobody looked.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
