"""Text of CUDA kernels to kernels of this process, on the emulated grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial

from tests.codegen.kept import kept
from thalweg.codegen.cuda.compile import HostKernel
from thalweg.codegen.llvm.compile import llvm_lock, machine_code, parsed_module, place
from thalweg.codegen.machine import CpuTarget, llvm, named

HostModule = dict[str, HostKernel]  # the kernels of a module, by name


def to_host(text: str, entries: Sequence[str]) -> HostModule:
    """The kernels of a module."""
    return _loaded(text, tuple(entries))


@lru_cache(64)  # tests run a kernel in several ways, of which some have the same text
def _loaded(text: str, entries: tuple[str, ...]) -> HostModule:
    return load_host(kept(partial(host_code, text), "host", text), entries)


def host_code(text: str) -> bytes:
    """The object file of a module, compiled fast rather than to fast code: emulated kernels run
    only once or twice."""
    target, level = _emulating(), 0
    known = llvm().Target.from_triple(target.triple)
    machine = known.create_target_machine(target.cpu, target.features, level, "pic", "small")
    layout = str(machine.target_data)
    with llvm_lock.acquired(), parsed_module(text, named("native").triple, layout) as module:
        return machine_code(machine, module, is_object=True)


def load_host(code: bytes, entries: Sequence[str]) -> HostModule:
    """The kernels of an object file, loaded into this process."""
    addresses = place(code, entries, named("native"))
    return {name: HostKernel(address) for name, address in zip(entries, addresses, strict=True)}


@cache
def _emulating() -> CpuTarget:
    """The host processor, without vector registers that LLVM's fast code generation handles
    incorrectly: it spills the upper 16 by instructions that do not exist."""
    native = named("native")
    if native.architecture == "aarch64":
        return native
    return replace(native, features=f"{native.features},-avx512f")
