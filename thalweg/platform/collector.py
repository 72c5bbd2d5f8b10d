"""The collector of cycles, where it would only look again and again through what lives on."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def gc_paused(are_kept: bool = False) -> Generator[None]:
    """Without the collector: making a graph, its gradients or its lowered form makes many objects,
    of which nearly all live on, and up to a tenth of the time went into looking through them.
    Emitting code is another matter: it leaves cycles, which would take up memory if nobody looked.

    Of objects that `are_kept`, as an import's, none is looked at before the next full collection.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if are_kept and not gc.get_freeze_count():  # or what is frozen would not stay so
            gc.freeze()
            gc.unfreeze()  # to where old objects are
        gc.enable()
