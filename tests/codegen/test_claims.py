"""What kernels promise LLVM: every claim in every kind of kernel is one that a rule allows."""

from __future__ import annotations

import re

import pytest

from tests.codegen.claims import findings, unfounded
from tests.codegen.steps import STEPS, emitted, kernels_of
from thalweg.codegen.machine import named
from thalweg.device.cpu.table_interpreter import emit_pool
from thalweg.platform.files import checksum

TARGETS = ("native", "x86-64-v4", "x86-64-v3", "x86-64-v2", "aarch64")


@pytest.mark.parametrize("name", STEPS)
def test_kernels_claim_only_what_holds(name: str) -> None:
    for asked in kernels_of(name):
        for target in TARGETS:
            assert findings(emitted(asked, named(target)).text) == []


@pytest.mark.parametrize(
    "line",
    [
        "%v1 = load <16 x float>, ptr %p1, align 64",
        "%v1 = load float, ptr %p1, align 8",
        "store <8 x i16> %v2, ptr %p1, align 4",
        "%v1 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 64 %p1, <16 x i1> %m, x)",
        "call void @llvm.masked.store.v8bf16.p0(<8 x bfloat> %v, ptr align 16 %p1, <8 x i1> %m)",
        "%v1 = getelementptr inbounds float, ptr %p1, i64 3",
        "store <4 x float> %v2, ptr %p1, align 4, !nontemporal !0",
        "%v1 = add nuw i64 %v2, 1",
        "%v1 = add nsw i32 %v2, 1",
        "%v1 = add nsw <4 x i64> %v2, %v3",
        "%v1 = sdiv exact i32 %v2, 4",
        "%v1 = fadd fast float %v2, %v3",
    ],
)
def test_a_claim_that_no_rule_allows_is_found(line: str) -> None:
    text = f"define void @kernel(ptr  %p0, ptr  %p1) nounwind {{\nentry:\n  {line}\n}}\n"
    assert len(findings(text)) == 1


def test_arithmetic_on_data_may_wrap() -> None:
    text = """define void @body(ptr noalias nocapture %p0) nounwind {
  %v1 = load i64, ptr %p0, align 8
  %v2 = sext i32 %v1 to i64
  %v3 = mul nsw i64 %v2, 8
}
define void @kernel(ptr  %p0, i64  %p1, i64  %p2) nounwind {
  %v1 = getelementptr i64, ptr %p0, i64 3
  %v2 = load i64, ptr %v1, align 8
  %v3 = mul nsw i64 %v2, 8
  call void @body(ptr %v2)
}
"""
    (found,) = findings(text)
    assert "loaded as data" in found


def test_parameters_have_no_other_marks() -> None:
    (found,) = findings("define void @kernel(ptr align 64 %p0) nounwind {\n}")
    assert "align 64" in found


def test_the_walker_claims_no_more_than_its_words_have() -> None:
    """Its blocks are laid out in multiples of 8 bytes, in arrays of 64-bit words."""
    assert findings(emit_pool(named("native")).text) == []


#: What functions of checksums may assume of addresses: the tables ask for it themselves; what folds
#: leave goes to the stack of their caller, and only a copy that has come to a line of its target
#: calls what writes whole lines, a span after the other.
ASSUMED = {"@tables": 64, "%out": 64, "%target": 64}
COUNTED = {checksum.by_products: {"%at": checksum._SPAN}, checksum.by_additions: {}}


@pytest.mark.parametrize("module", COUNTED)
def test_checksums_claim_only_alignment_that_follows(module) -> None:
    assert unfounded(module(), ASSUMED | COUNTED[module]) == []


@pytest.mark.parametrize("module", COUNTED)
def test_what_checksums_are_told_of_addresses_is_so(module) -> None:
    """`%out` is on the caller's stack, `%target` is past the bytes before its first line."""
    text = module()
    rests = re.findall(r"call void @fold\d+\(.*, ptr (%\w+)\)", text)
    assert all(re.search(rf"{rest} = alloca .*, align 64$", text, re.MULTILINE) for rest in rests)
    if "@folded_copy" in text:
        assert re.findall(r"call i32 @folded_copy\(ptr %data, ptr (%\w+),", text) == ["%line"]
        assert "define private i32 @folded_copy" in text
        assert "%before = and i64 %negative, 63" in text


def test_an_alignment_that_does_not_follow_is_found() -> None:
    text = """define void @fold(ptr %data) {
  %gone = alloca [4096 x i8], align 64
  %now = getelementptr i8, ptr %gone, i64 736
  call void @llvm.memset.p0.i64(ptr align 64 %now, i8 0, i64 736, i1 false)
  store <8 x i64> %sum, ptr %now, align 32
  %first = load i64, ptr %data
  %second = load i64, ptr %data, align 1
}"""
    assert [line.split()[0] for line in unfounded(text, {})] == ["call", "%first"]
