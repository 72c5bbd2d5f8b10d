"""Lowering is tested on unoptimised steps: the optimiser would leave some of them empty."""

from __future__ import annotations

from typing import Any

import pytest

from thalweg.runtime import plan


@pytest.fixture(autouse=True)
def unoptimized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are planned without the passes of the optimiser."""

    def as_written(step: Any, nodes: Any, placement: Any, *_: Any) -> Any:
        return step, nodes, placement, ()

    monkeypatch.setattr(plan, "optimized", as_written)
