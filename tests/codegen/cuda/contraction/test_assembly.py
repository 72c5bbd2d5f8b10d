"""Contractions as PTX: it has the instructions it is to have, and `ptxas` takes it, where it is."""

import re
import subprocess
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tests.codegen.contraction.contractions import Conv, matmul
from tests.codegen.cuda.contraction.products import narrow_convolutions, narrow_product, updated
from thalweg.codegen.cuda.compile import ptxas, to_cubin, to_ptx
from thalweg.codegen.cuda.contraction.kernel import emit_contraction
from thalweg.codegen.cuda.contraction.schedule import Schedule
from thalweg.codegen.cuda.target import CudaTarget

BFLOAT16, FLOAT8 = np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn)
COPIED = Schedule("wgmma", 128, 128, 64, 8, 1, stages=4, loaders=1)
FRAGMENTS = Schedule(
    "wgmma", 128, 256, 32, 8, 1, stages=3, loaders=4, transposed="b", fragments=True
)
WINDOWS = narrow_convolutions(BFLOAT16, 8, 14, 14, 64, 128, 3, 3, pad=(1, 1))
NARROW_WINDOWS = narrow_convolutions(BFLOAT16, 8, 14, 14, 16, 128, 5, 5, pad=(2, 2))

CASES = {
    "cores": (matmul(512, 512, 512), Schedule("cores", 128, 128, 16, 8, 1), 90),
    "doubles": (
        matmul(512, 512, 512, dtype=np.float64), Schedule("cores", 64, 64, 8, 4, 1), 80
    ),
    "mma": (
        narrow_product(512, 512, 512, BFLOAT16), Schedule("mma", 128, 128, 64, 8, 4, stages=4), 80
    ),
    "mma tf32": (matmul(512, 512, 512), Schedule("mma", 128, 64, 32, 8, 2, stages=3), 80),
    "mma fp8": (
        narrow_product(512, 512, 512, FLOAT8, tb=True),
        Schedule("mma", 64, 64, 128, 4, 2, stages=3),
        89,
    ),
    "wgmma": (narrow_product(512, 512, 512, BFLOAT16), COPIED, 90),
    "wgmma shared": (
        narrow_product(512, 512, 512, np.float16, ta=True),
        Schedule("wgmma", 128, 64, 64, 8, 1, stages=4, loaders=1, workers=132),
        90,
    ),
    "wgmma threads": (
        narrow_product(511, 513, 515, BFLOAT16),
        Schedule("wgmma", 128, 128, 64, 8, 1, stages=4, loaders=4),
        90,
    ),
    "wgmma tf32": (
        matmul(512, 512, 512, tb=True),
        Schedule("wgmma", 128, 128, 32, 8, 1, stages=4, loaders=1),
        90,
    ),
    "transposed": (
        matmul(512, 512, 512),
        Schedule("wgmma", 128, 256, 32, 8, 1, stages=4, loaders=1, transposed="b"),
        90,
    ),
    "fragments": (updated(matmul(512, 512, 512, ta=True)), replace(FRAGMENTS, buffers=2), 90),
    "fragments of windows": (
        Conv(8, 14, 14, 64, 256, 3, 3, pad=(1, 1)).filter_gradient(),
        replace(FRAGMENTS, stages=4, splits=4),
        90,
    ),
    "rewritten": (
        Conv(8, 14, 14, 64, 256, 3, 3, pad=(1, 1)).filter_gradient(),
        replace(FRAGMENTS, stages=4, splits=4, transposed="", rewritten=True),
        90,
    ),
    "wgmma fp8": (
        narrow_product(512, 512, 512, FLOAT8, tb=True),
        Schedule("wgmma", 64, 128, 128, 4, 1, stages=4, loaders=1),
        90,
    ),
    "wgmma epilogue": (
        updated(narrow_product(512, 512, 512, BFLOAT16, out=BFLOAT16)),
        replace(COPIED, stages=3, buffers=4),
        90,
    ),
    "forward": (WINDOWS[0], COPIED, 90),
    "filter gradient": (WINDOWS[1], COPIED, 90),
    "input gradient": (WINDOWS[2], COPIED, 90),
    "short lines": (NARROW_WINDOWS[0], COPIED, 90),
    "short lines across": (NARROW_WINDOWS[1], COPIED, 90),
}  # fmt: skip


def ptx_of(name):
    kernel, schedule, capability = CASES[name]
    target = CudaTarget(capability=capability)
    made = emit_contraction(kernel, target, aligned=True, schedule=schedule)
    return to_ptx(made.text, target), target


@pytest.mark.parametrize("name", CASES)
def test_assembles(name):
    ptx, target = ptx_of(name)
    local = "" if name == "cores" else "local|"  # where the totals of long sums are
    found = re.search(rf"\bld\.({local}b|v)|\bst\.({local}b|v)", ptx)
    assert not found, "memory of no known kind"
    if ptxas() is not None:
        assert to_cubin(ptx, target)


@pytest.mark.skipif(ptxas() is None, reason="no ptxas")
@pytest.mark.parametrize(
    "name", ["wgmma epilogue", "fragments", "fragments of windows", "rewritten"]
)
def test_sums_stay_in_registers_while_they_are_added_to(name, tmp_path):
    """`ptxas` waits for each product where registers are short, and says so."""
    ptx, target = ptx_of(name)
    source = tmp_path / "kernel.ptx"
    source.write_text(ptx)
    ran = subprocess.run(
        [ptxas(), "-v", f"-arch={target.cpu}", "-o", tmp_path / "kernel.cubin", source],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "serialized" not in ran.stderr
    assert set(re.findall(r"(\d+) bytes spill", ran.stderr)) == {"0"}


@pytest.mark.parametrize(
    "name, instruction",
    [
        ("cores", "ld.global.v4"),
        ("cores", "ld.shared.v4"),
        ("mma", "cp.async.cg.shared.global"),
        ("mma", "ldmatrix.sync.aligned.m8n8.x4.trans"),
        ("mma fp8", "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32"),
        ("wgmma", "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16"),
        ("wgmma", "cp.async.bulk.tensor.2d"),
        ("wgmma", "cvta.param"),
        ("wgmma fp8", "m64n128k32.f32.e4m3.e4m3"),
        ("wgmma epilogue", "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group"),
        ("wgmma epilogue", "cp.async.bulk.wait_group.read 1"),
        ("transposed", "m64n256k8.f32.tf32.tf32"),
        ("fragments", "setmaxnreg.inc.sync.aligned.u32"),
        ("fragments of windows", "im2col"),
        ("forward", "im2col"),
        ("filter gradient", "im2col"),
        ("input gradient", "im2col"),
    ],
)
def test_instructions(name, instruction):
    assert instruction in ptx_of(name)[0]
