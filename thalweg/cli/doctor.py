"""`thalweg doctor`: what this installation runs on, what it lacks, and whether it works."""

from __future__ import annotations

import argparse
import os
import platform
import re
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import numpy as np

from thalweg.cli.arguments import Subparsers, add_json, subcommand
from thalweg.cli.cache import cache_problem, cache_report
from thalweg.cli.problem import describe
from thalweg.cli.report import Report, show
from thalweg.codegen.machine import CpuTarget, host, llvm
from thalweg.device.cpu.pool import default_threads
from thalweg.graph.graph import Graph
from thalweg.inspect.session import Session
from thalweg.ops.core.basic import placeholder
from thalweg.ops.linalg.matmul import matmul
from thalweg.ops.math.transcendental import tanh
from thalweg.version import __version__

_ABOUT = """\
Tell what this installation runs on: the processor and what code is made for, threads,
the cache on disk, which optional packages are there; and try out that a kernel compiles,
runs and gives the right numbers. The exit status is 1 if something does not work."""

_EXAMPLES = """\
examples:
  thalweg doctor                 to read, or to paste into a bug report
  thalweg doctor --json          for scripts
  THALWEG_TARGET=x86-64-v3 thalweg doctor        as on an older processor"""

_NOTED = ("fma", "avx2", "f16c", "avx512f", "avx512bf16", "avx512fp16", "amx-tile", "neon")
_EXTRAS = {
    "board": "TensorBoard, to look at event files in a browser",
    "cluster": "many processes: servers, sessions with a target, thalweg launch",
    "demo": "what the examples use: data, pictures, progress bars",
    "image": "images decoded and encoded",
    "ray": "clusters on Ray",
}
_REQUIREMENT = re.compile(r"([\w.-]+)(?:.*extra == ['\"]([\w-]+)['\"])?")
_TOLERANCE = 1e-5


def add(commands: Subparsers) -> None:
    """Add the command to the command line."""
    command = subcommand(commands, "doctor", "how this installation does", _ABOUT, _EXAMPLES)
    add_json(command)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    is_well, tried = _self_test()
    report = Report("thalweg", __version__, _system(), {"packages": list(_packages())})
    report.parts = [_processor(host()), cache_report(), tried]
    show(report, args.json)
    return 0 if is_well and cache_problem() is None else 1


def _system() -> dict[str, Any]:
    settings = sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith("THALWEG_"))
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "llvm": ".".join(map(str, llvm().llvm_version_info)),
        "settings": " ".join(settings) or "none in the environment",
    }


def _processor(target: CpuTarget) -> Report:
    """What code is made for."""
    facts = {
        "model": _model_name() or platform.processor() or "unknown",
        "target": f"{target.name} ({target.cpu})",
        "vectors": f"{8 * target.vector_bytes} bits, {target.registers} registers",
        "extensions": ", ".join(e for e in _NOTED if target.has(e)) or "none",
        "threads": default_threads(),
        "caches": f"{target.l1 >> 10} KiB, {target.l2 >> 10:,} KiB, {target.l3 >> 10:,} KiB",
    }
    return Report("processor", facts=facts)


def _model_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = (line.partition(":")[2] for line in file if line.startswith("model name"))
            return next(names, "").strip()
    except OSError:
        return ""


def _packages() -> Iterator[dict[str, Any]]:
    """The packages that this one names, and what to do about those that are not there."""
    for name, extra in _requirements():
        version = _version(name)
        advice = f"pip install 'thalweg[{extra}]'" if extra else "pip install thalweg again"
        yield {
            "package": name,
            "version": version or "not installed",
            "for": _EXTRAS.get(extra, extra) if extra else "needed",
            "to install": "" if version else advice,
        }


def _requirements() -> Iterator[tuple[str, str]]:
    """Packages with the extra that brings them, as the installed package says; not those of
    developers."""
    try:
        lines = metadata.requires("thalweg") or []
    except metadata.PackageNotFoundError:  # run from a copy of the sources
        lines = []
    for line in lines:
        found = _REQUIREMENT.match(line)
        if found is not None and found[1] != "thalweg" and found[2] != "dev":
            yield found[1], found[2] or ""


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _self_test() -> tuple[bool, Report]:
    """Whether a kernel compiles and gives what NumPy gives; what happened, in words."""
    try:
        facts = _tried()
    except Exception as error:  # whatever it is, this is the command that tells
        return False, Report("self-test", facts={"result": f"failed: {describe(error)}"})
    is_well = facts["difference"] < _TOLERANCE
    facts["result"] = "passed" if is_well else "failed: other numbers than NumPy's"
    return is_well, Report("self-test", facts=facts)


def _tried() -> dict[str, Any]:
    left, right = np.random.default_rng(0).normal(size=(2, 16, 16)).astype(np.float32)
    with Graph().as_default(), Session() as session:
        x = placeholder("float32", [16, 16])
        y = tanh(matmul(x, right))
        plan = session.plan(y, {x: left})
        value = session.run(y, {x: left})
    kernels = [kernel.name for kernel in plan.kernels]
    code = [line for kernel in plan.kernels for line in kernel.asm.splitlines()]
    difference = float(np.abs(value - np.tanh(np.einsum("ij,jk", left, right))).max())
    return {
        "kernels": ", ".join(kernels) or "none: compiling is off (THALWEG_COMPILE=0)",
        "lines of assembly": len(code),
        "difference": difference,
    }
