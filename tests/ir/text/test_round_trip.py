"""The text of a kernel read back is the kernel: over models, steps of all kinds, random kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.codegen import steps
from tests.codegen.loops.test_random_loops import Maker
from tests.ir.text.benchmark_kernels import FULL, SMALL, kernels_of_model
from tests.soak import SOAKING
from thalweg.ir.fingerprint import summary, with_dynamic
from thalweg.ir.kernel import Kernel
from thalweg.ir.text.parser import parse_kernel
from thalweg.ir.text.printer import kernel_text

SEEDS = 10_000 if SOAKING else 200


def assert_reads_back(kernel: Kernel) -> None:
    """The text of a kernel stands for a kernel of the same structure, with the same integers."""
    text = kernel_text(kernel)
    back = parse_kernel(text)
    assert kernel_text(back) == text
    assert type(back) is type(kernel)
    # A copy: the fingerprint of a kernel with dynamic integers is noted as that without.
    assert summary(back).fingerprint == summary(replace(kernel)).fingerprint, text
    assert summary(back).integers == summary(kernel).integers, text
    assert [(a.position, a.written) for a in back.arguments] == [
        (a.position, a.written) for a in kernel.arguments
    ]


def assert_all_read_back(kernels: list[Kernel]) -> None:
    distinct = {summary(kernel): kernel for kernel in kernels}
    for kernel in distinct.values():
        assert_reads_back(kernel)
        assert_reads_back(with_dynamic(kernel, range(0, len(summary(kernel).integers), 2), 3))


@pytest.mark.parametrize("name", SMALL)
def test_kernels_of_the_benchmarks_models(name: str) -> None:
    assert_all_read_back(kernels_of_model(name, SMALL[name], 2))


@pytest.mark.skipif(not SOAKING, reason="takes minutes: THALWEG_SOAK=1")
@pytest.mark.parametrize("name", FULL)
def test_kernels_of_the_benchmarks_models_at_full_size(name: str) -> None:
    assert_all_read_back(kernels_of_model(name, FULL[name], 16))


@pytest.mark.parametrize("name", steps.STEPS)
def test_kernels_of_all_kinds_of_steps(name: str) -> None:
    wanted = [asked.make.args[0] for asked in steps.kernels_of(name)]
    assert_all_read_back([kernel for each in wanted for kernel in getattr(each, "kernels", [each])])


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_random_kernels(first: int) -> None:
    for seed in range(first, first + 50):
        assert_reads_back(Maker(seed).kernel())
