"""Targets: what the levels of processors have, and which one is chosen."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from thalweg.codegen import machine
from thalweg.codegen.machine import host, host_supports, named


@pytest.mark.parametrize(
    ("name", "vector_bytes", "registers", "has_masks", "fma"),
    [
        ("x86-64", 16, 16, False, False),
        ("x86-64-v2", 16, 16, False, False),
        ("x86-64-v3", 32, 16, False, True),
        ("x86-64-v4", 64, 32, True, True),
        ("aarch64", 16, 32, False, True),
    ],
)
def test_levels(name: str, vector_bytes: int, registers: int, has_masks: bool, fma: bool):
    target = named(name)
    assert (target.vector_bytes, target.registers) == (vector_bytes, registers)
    assert (target.has_masks, target.fma) == (has_masks, fma)
    assert target.lanes == vector_bytes // 4


def test_extensions_are_asked_for_by_name():
    assert named("x86-64-v3").has("f16c")
    assert not named("x86-64-v2").has("f16c")


def test_keys_differ_between_targets_and_name_the_compiler():
    keys = {named(name).key for name in ("x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64")}
    version = ".".join(map(str, machine.llvm().llvm_version_info))
    assert len(keys) == 4
    assert all(version in key for key in keys)


def test_the_environment_forces_a_target(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("THALWEG_TARGET", "x86-64-v2")
    assert host() is named("x86-64-v2")
    monkeypatch.setenv("THALWEG_TARGET", "")
    assert host() is named("native")


def test_an_unknown_target_is_refused_with_the_known_ones(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("THALWEG_TARGET", "z80")
    with pytest.raises(ValueError, match=r"'z80'.*native, x86-64-v4, .*aarch64"):
        host()


def test_what_runs_here():
    assert host_supports(named("native"))
    foreign = "x86-64-v2" if named("native").architecture == "aarch64" else "aarch64"
    assert not host_supports(named(foreign))


MODELS = ["znver2", "znver4", "skylake-avx512", "sapphirerapids"]


@pytest.mark.parametrize("model", MODELS)
def test_code_for_a_model_runs_here(model: str):
    """Tuned for it, with what both have; whatever LLVM knows of and one lacks is off."""
    here, target = named("native"), named(model)
    assert target.cpu == model
    if here.architecture == "x86_64":
        assert host_supports(target)
        off = {part[1:] for part in target.features.split(",") if part.startswith("-")}
        assert not off & target.extensions
        known = {part[1:] for part in here.features.split(",")} - {"prefer-256-bit"}
        assert known <= off | target.extensions


def test_a_model_has_no_more_than_the_machine(monkeypatch: pytest.MonkeyPatch):
    small = "+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe,+xsave,-avx512f,-amx-tile,+newer"
    older = f"+cx16,+popcnt,+sahf,+sse3,+sse4.1,+sse4.2,+ssse3,{small}"
    monkeypatch.setattr(machine, "llvm", lambda: fake_llvm("x86_64-linux", "haswell", older))
    machine.named.cache_clear()
    try:
        for model in MODELS:
            target = named(model)
            assert (target.vector_bytes, target.has_masks) == (32, False)
            off = target.features.split(",")
            assert "-newer" in off
            assert "-avx512f" in off
            assert model != "sapphirerapids" or "-amx-tile" in off
    finally:
        machine.named.cache_clear()


def fake_llvm(triple: str, cpu: str, features: str | None) -> SimpleNamespace:
    def get_features() -> SimpleNamespace:
        if features is None:
            raise RuntimeError("failed to get host cpu features")
        return SimpleNamespace(flatten=lambda: features)

    return SimpleNamespace(
        get_process_triple=lambda: triple,
        get_host_cpu_name=lambda: cpu,
        get_host_cpu_features=get_features,
    )


@pytest.mark.parametrize(
    ("cpu", "features", "expected", "vector_bytes"),
    [
        ("generic", machine._V4, "x86-64-v4", 64),
        ("generic", f"{machine._V4},-avx512bw".replace("+avx512bw,", ""), "x86-64-v3", 32),
        ("generic", machine._V2, "x86-64-v2", 16),
        ("generic", "+sse2", "x86-64", 16),
        ("znver9", None, "x86-64", 16),
        ("haswell", machine._V3, "haswell", 32),
    ],
)
def test_a_processor_gets_the_level_it_has(
    monkeypatch: pytest.MonkeyPatch,
    cpu: str,
    features: str | None,
    expected: str,
    vector_bytes: int,
):
    monkeypatch.setattr(machine, "llvm", lambda: fake_llvm("x86_64-linux-gnu", cpu, features))
    target = machine._native()
    assert (target.cpu, target.vector_bytes) == (expected, vector_bytes)


@pytest.mark.parametrize("triple", ["aarch64-linux", "arm64-apple-darwin24.1.0"])
def test_an_arm_host_is_native_too(monkeypatch: pytest.MonkeyPatch, triple: str):
    monkeypatch.setattr(machine, "llvm", lambda: fake_llvm(triple, "neoverse-n1", "+neon"))
    target = machine._native()
    assert (target.triple, target.architecture) == (triple, "aarch64")
    assert (target.cpu, target.registers) == ("neoverse-n1", 32)
    assert target.fma
    assert target.native_fp16


def test_sizes_of_caches_come_from_the_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    found = [
        ("1", "Data", "48K"),
        ("1", "Instruction", "64K"),
        ("2", "Unified", "2M"),
        ("3", "x", ""),
    ]
    for number, (level, kind, size) in enumerate(found):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        (folder / "level").write_text(f"{level}\n")
        (folder / "type").write_text(f"{kind}\n")
        (folder / "size").write_text(f"{size}\n")
    monkeypatch.setattr(machine, "_CACHES", tmp_path)
    cores = max(2, os.cpu_count() or 2)
    assert machine._sizes.__wrapped__() == {"cores": cores, "l1": 48 << 10, "l2": 2 << 20}


def test_a_system_that_tells_nothing_leaves_the_defaults(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(machine, "_CACHES", tmp_path / "none")
    assert machine._sizes.__wrapped__().keys() == {"cores"}


@pytest.mark.parametrize("granted", [True, False])
def test_the_matrix_unit_is_used_if_the_system_lets_us(
    monkeypatch: pytest.MonkeyPatch, granted: bool
):
    features = f"{machine._V4},+amx-bf16,+amx-tile"
    fake = fake_llvm("x86_64-unknown-linux-gnu", "sapphirerapids", features)
    monkeypatch.setattr(machine, "llvm", lambda: fake)
    monkeypatch.setattr(machine, "_request_amx_tiles", lambda: granted)
    target = machine._native()
    assert target.has("amx-tile") == target.has("amx-bf16") == granted
    assert target.vector_bytes == 64
