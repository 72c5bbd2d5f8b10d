"""CPU targets: the host, or a named level or model of x86-64 or AArch64.

Comes in: LLVM's description of the host and its cache sizes, or a name. Goes out: a `CpuTarget`,
with the width and number of vector registers, cache sizes and instruction set extensions.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import platform
import sys
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from thalweg.ir.target import Target
from thalweg.platform.c_library import c_function
from thalweg.platform.caches import memoized

#: Part of every cache key. To be raised whenever the same LLVM text may compile to other machine
#: code (pass pipeline, calling convention).
_CODE_VERSION = 1
#: The most threads that work on one kernel: each has scratch memory of its own.
SLOTS = min(64, max(4, os.cpu_count() or 4))

_V2 = "+cx16,+popcnt,+sahf,+sse3,+sse4.1,+sse4.2,+ssse3"
_V3 = f"{_V2},+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe,+xsave"
_V4 = f"{_V3},+avx512bw,+avx512cd,+avx512dq,+avx512f,+avx512vl"
_LEVELS = {"x86-64-v4": _V4, "x86-64-v3": _V3, "x86-64-v2": _V2, "x86-64": ""}
#: The extensions of processor models that kernels may use, in LLVM's names. Others (system,
#: transactions, encryption) are left out.
_BASE = "+64bit,+cmov,+crc32,+cx8,+fxsr,+mmx,+sse,+sse2"
_SKYLAKE = f"{_BASE},{_V4},+adx,+aes,+pclmul,+prfchw"
_LATER = (
    "+avx512bf16,+avx512bitalg,+avx512ifma,+avx512vbmi,+avx512vbmi2,+avx512vnni,"
    "+avx512vpopcntdq,+gfni,+sha,+vaes,+vpclmulqdq"
)
_AMX = "+amx-bf16,+amx-int8,+amx-tile"
_MODELS = {
    "znver2": f"{_BASE},{_V3},+adx,+aes,+pclmul,+prfchw,+sha,+sse4a",
    "znver4": f"{_SKYLAKE},{_LATER},+sse4a",
    "skylake-avx512": _SKYLAKE,
    "sapphirerapids": f"{_SKYLAKE},{_LATER},{_AMX},+avx512fp16,+avxvnni",
}
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA = 158, 0x1023, 18
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, kw_only=True)
class CpuTarget(Target):
    """A processor that machine code is generated for."""

    triple: str
    architecture: str  # the instruction set: "x86_64" or "aarch64"
    cpu: str
    features: str  # as LLVM takes them: "+avx2,-avx512f"

    @cached_property
    def extensions(self) -> frozenset[str]:
        """The instruction set extensions that it has, in LLVM's names."""
        return _extensions(self.features)

    def has(self, extension: str) -> bool:
        """Whether it has an instruction set extension: `target.has("f16c")`."""
        return extension in self.extensions

    @property
    def has_masks(self) -> bool:
        """Whether every vector instruction takes a lane mask (AVX-512)."""
        return self.has("avx512vl")

    @property
    def native_fp16(self) -> bool:
        """Whether float16 is converted by an instruction."""
        return self.has("f16c") or self.architecture == "aarch64"

    @property
    def fma(self) -> bool:
        """Whether it has a fused multiply-add."""
        return self.has("fma") or self.architecture == "aarch64"

    @cached_property
    def key(self) -> str:
        """All that a kernel's machine code depends on besides its LLVM text."""
        return f"{self.triple} {self.cpu} {self.features} {compiler_version()}"


@cache
def llvm() -> Any:
    """llvmlite's binding, initialized; imported on first use, since that is slow."""
    binding = importlib.import_module("llvmlite.binding")
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    binding.initialize_native_asmparser()
    return binding


def compiler_version() -> str:
    """The versions of LLVM, of llvmlite and of how they are used."""
    version = ".".join(map(str, llvm().llvm_version_info))
    return f"{version} {importlib.import_module('llvmlite').__version__} {_CODE_VERSION}"


def host() -> CpuTarget:
    """The target of this process: the host, or what THALWEG_TARGET names."""
    return named(os.environ.get("THALWEG_TARGET") or "native")


@memoized(16)
def named(name: str) -> CpuTarget:
    """A target by name: "native", a level such as "x86-64-v3", a model such as "znver4", "aarch64".

    Code for a level uses all of the level. Code for a model is tuned for it and uses the extensions
    that both the model and the host have, so that it always runs here.
    """
    if name == "native":
        return _native()
    if name == "aarch64":
        return _aarch64(name, "aarch64-unknown-linux-gnu", "generic", "+neon")
    if name in _LEVELS:
        return _x86(name, "x86_64-unknown-linux-gnu", name, _LEVELS[name])
    if name in _MODELS:
        return _x86(name, "x86_64-unknown-linux-gnu", name, _shared_features(name))
    known = ", ".join(["native", *_LEVELS, *_MODELS, "aarch64"])
    raise ValueError(f"There is no target {name!r} (THALWEG_TARGET); the targets are {known}.")


def host_supports(target: CpuTarget) -> bool:
    """Whether the host has every extension of the target."""
    here = named("native")
    if target.architecture != here.architecture:
        return False
    return target.architecture == "aarch64" or target.extensions <= here.extensions


def _native() -> CpuTarget:
    binding = llvm()
    triple, cpu = binding.get_process_triple(), binding.get_host_cpu_name()
    found = _host_features(binding)
    if triple.startswith(("aarch64", "arm64")):
        return _aarch64("native", triple, cpu, found)
    if not found or not cpu or cpu == "generic":
        cpu = _level(_extensions(found))
    return _x86("native", triple, cpu, found)


def _host_features(binding: Any) -> str:
    try:
        result = binding.get_host_cpu_features().flatten()
    except RuntimeError:  # LLVM cannot ask this system
        return ""
    if "amx-tile" in _extensions(result) and not _request_amx_tiles():
        return result.replace("+amx-", "-amx-")
    return result


def _shared_features(model: str) -> str:
    """The features that a model and the host share. All others are switched off explicitly, since
    LLVM would imply them from the model's name. On another architecture: the model's features."""
    here = named("native")
    wanted = _extensions(_MODELS[model])
    if here.architecture != "x86_64":
        return _MODELS[model]
    known = {part[1:] for part in here.features.split(",") if part} - {"prefer-256-bit"}
    return ",".join(
        f"{'+' if part in wanted & here.extensions else '-'}{part}"
        for part in sorted(known | wanted)
    )


def _request_amx_tiles() -> bool:
    """Ask the kernel for permission to use AMX tile registers; whether it is granted."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    word = ctypes.c_long
    call = c_function("syscall", word, word, word, word)
    return call is not None and call(_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA) == 0


def _extensions(features: str) -> frozenset[str]:
    return frozenset(part[1:] for part in features.split(",") if part.startswith("+"))


def _level(extensions: frozenset[str]) -> str:
    """The highest x86-64 level whose extensions are all present."""
    return next(name for name, parts in _LEVELS.items() if extensions >= _extensions(parts))


def _x86(name: str, triple: str, cpu: str, features: str) -> CpuTarget:
    cpu_target = _target(name, triple, "x86_64", cpu, features)
    level = _level(cpu_target.extensions)
    if level == "x86-64-v4":
        # LLVM avoids 512-bit vectors on the first AVX-512 processors unless told otherwise.
        wide = f"{features},-prefer-256-bit"
        return replace(cpu_target, features=wide, vector_bytes=64, registers=32)
    if level == "x86-64-v3":
        return replace(cpu_target, vector_bytes=32)
    return cpu_target


def _aarch64(name: str, triple: str, cpu: str, features: str) -> CpuTarget:
    return replace(_target(name, triple, "aarch64", cpu, features), registers=32)


def _target(name: str, triple: str, architecture: str, cpu: str, features: str) -> CpuTarget:
    """A target with the sizes of the host, and the least that the architecture has."""
    least = CpuTarget(
        name=name, triple=triple, architecture=architecture, cpu=cpu, features=features
    )
    return replace(least, **_sizes())


@cache
def _sizes() -> dict[str, int]:
    """The number of cores, and the cache sizes of one in bytes, as far as the system tells."""
    sizes = {"cores": max(2, os.cpu_count() or 2)}
    for index in sorted(_CACHES.glob("index*")):
        try:
            kind, level, size = (
                (index / part).read_text().strip() for part in ("type", "level", "size")
            )
            if kind != "Instruction" and level in "123":
                sizes[f"l{level}"] = _byte_count(size)
        except (OSError, ValueError):
            continue
    return sizes


def _byte_count(text: str) -> int:
    unit = _UNITS.get(text[-1:].upper(), 0)
    return int(text[:-1]) * unit if unit else int(text)
