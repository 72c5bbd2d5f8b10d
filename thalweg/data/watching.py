"""Spans of pipeline stages: while a step is traced, each flow records the time of its calls.

During a recording, timed wrappers of `next` and `rows` shadow a flow's methods; otherwise a flow
has no overhead.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any, cast

from thalweg.platform import spans

_COVERED = ("next", "rows")
_live: set[weakref.ref[Any]] = set()


def register_flow(flow: Any) -> None:
    """Register a flow: its calls are timed during recordings."""
    _live.add(weakref.ref(flow, _live.discard))
    if spans.is_on():
        _watch(flow)


def _switched(is_on: bool) -> None:
    for reference in list(_live):
        flow = reference()
        if flow is not None:
            (_watch if is_on else _leave)(flow)


def _watch(flow: Any) -> None:
    node, kind = getattr(flow.pipeline, "node", None), cast("Any", type(flow))
    if node is not None:
        for name in _COVERED:
            setattr(flow, name, _timed(getattr(kind, name).__get__(flow), node))


def _leave(flow: Any) -> None:
    for name in _COVERED:
        flow.__dict__.pop(name, None)


def _timed(pull: Callable[..., Any], node: spans.Subject) -> Callable[..., Any]:
    def timed(*most: int) -> Any:
        start = time.perf_counter_ns()
        try:
            return pull(*most)
        finally:
            spans.record_span(node.type, node, start)

    return timed


spans.on_switch(_switched)
