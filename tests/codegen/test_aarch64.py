"""Every kind of kernel is emitted for AArch64 and assembled, on whatever the tests run."""

from __future__ import annotations

import pytest

from tests.codegen.steps import STEPS, emitted, kernels_of
from thalweg.codegen.llvm.compile import assembly, object_code
from thalweg.codegen.llvm.emitted import Emitted
from thalweg.codegen.machine import named
from thalweg.device.cpu.table_interpreter import emit_pool
from thalweg.platform.files import checksum

ARM = named("aarch64")


def assembled(module: Emitted) -> None:
    code = object_code(module.text, ARM, module.passes)
    assert all(name.encode() in code for name in module.functions)


@pytest.mark.parametrize("name", STEPS)
def test_kernels_are_assembled(name: str) -> None:
    asked = kernels_of(name)
    assert asked
    for one in asked:
        assembled(emitted(one, ARM))


def test_the_walker_is_assembled() -> None:
    assembled(emit_pool(ARM))


def test_checksums_are_assembled() -> None:
    assembled(Emitted(("crc32c", "copy"), checksum.by_additions()))


def test_the_instructions_are_those_of_the_architecture() -> None:
    (asked,) = kernels_of("matmul float32")
    made = emitted(asked, ARM)
    assert "fmla" in assembly(made.text, ARM, made.passes)
