"""Reference cycles that steps leave behind.

A step whose objects refer to each other in a cycle keeps its values, shared memory among them,
until the collector runs, and pays for the collector. Steps must free all they made when they end.
"""

import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

_WARM_UP, _STEPS = 3, 20


def cycles_left_by(step: Callable[[], Any]) -> dict[str, int]:
    """How many of Thalweg's own objects are left in cycles after some steps, by type."""
    for _ in range(_WARM_UP):
        step()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(_STEPS):
            step()
        gc.garbage.clear()
        gc.collect()
        types = [type(each) for each in gc.garbage]
        return Counter(each.__name__ for each in types if each.__module__.startswith("thalweg."))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
