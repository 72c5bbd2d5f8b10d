"""The targets that kernels are compiled for: this machine, and older ones whose code it runs."""

import pytest

from thalweg.codegen.machine import CpuTarget, host_supports, named

TARGETS = [
    pytest.param(name, marks=pytest.mark.skipif(not host_supports(named(name)), reason="not here"))
    for name in ("native", "x86-64-v3", "x86-64-v2")
]


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> CpuTarget:
    """Each target whose code runs here."""
    return named(request.param)


@pytest.fixture
def native() -> CpuTarget:
    """This machine."""
    return named("native")
