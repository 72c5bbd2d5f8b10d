"""What CUDA kernels promise LLVM: every claim is one that a rule allows."""

from __future__ import annotations

import pytest

from tests.codegen.claims import findings
from tests.codegen.steps import STEPS, kernels_of
from thalweg.codegen.cuda.kernel import emit
from thalweg.codegen.cuda.target import CudaTarget
from thalweg.platform.dtype_traits import is_narrow_float


@pytest.mark.parametrize("name", STEPS)
def test_kernels_claim_only_what_holds(name: str) -> None:
    for asked in kernels_of(name):
        for kernel in _kernels(asked.make.args[0]):  # type: ignore[attr-defined]
            for aligned in (False, True):
                text = emit(kernel, CudaTarget(), aligned=aligned).text
                narrow = any(is_narrow_float(argument.dtype) for argument in kernel.arguments)
                assert findings(text, on_grid=True, aligned=aligned, narrow=narrow) == []


def _kernels(asked: object) -> list:
    """The kernels of a request: one, or those of an iteration."""
    return list(getattr(asked, "kernels", [asked]))


@pytest.mark.parametrize(
    "line",
    [
        "%v1 = load <8 x float>, ptr %p1, align 32",
        "%v1 = load float, ptr %p1, align 16",
        "%v1 = call range(i32 0, 5) i32 @other()",
        "%v1 = load float, ptr %p1, align 4, !invariant.load !0",
    ],
)
def test_a_claim_that_no_rule_allows_is_found(line: str) -> None:
    text = f"define void @kernel.body(ptr  %p0, ptr  %p1) nounwind {{\nentry:\n  {line}\n}}\n"
    assert len(findings(text, on_grid=True, aligned=True)) == 1


def test_only_aligned_kernels_claim_alignment() -> None:
    line = "%v1 = load <4 x float>, ptr %p1, align 16"
    text = f"define void @kernel.body(ptr  %p0, ptr  %p1) nounwind {{\nentry:\n  {line}\n}}\n"
    assert findings(text, on_grid=True, aligned=True) == []
    assert len(findings(text, on_grid=True)) == 1
