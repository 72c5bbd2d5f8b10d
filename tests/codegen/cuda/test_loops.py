"""The loop kernels of the CPU's tests on an emulated GPU."""

from __future__ import annotations

import pytest

from tests.codegen.cuda import emulated
from tests.codegen.loops import test_kernel, test_random_loops
from tests.codegen.loops.test_kernel import *  # noqa: F403 (the same tests, on another machine)
from tests.codegen.loops.test_random_loops import *  # noqa: F403 (as above)


@pytest.fixture(autouse=True)
def on_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels run on an emulated GPU."""
    for module in (test_kernel, test_random_loops):
        monkeypatch.setattr(module, "agree", emulated.agree)
