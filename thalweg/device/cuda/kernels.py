"""The cache of GPU kernels, by content: compiled once, stored on disk beside those of CPUs, and
loaded into the context of each device that uses them."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from thalweg.codegen.cache import note, shared_disk
from thalweg.codegen.cuda.compile import instruction_bytes, to_cubin, to_ptx
from thalweg.codegen.cuda.contraction.tune import tuned_schedule
from thalweg.codegen.cuda.kernel import emit
from thalweg.codegen.cuda.launch import CudaKernel
from thalweg.codegen.cuda.target import CudaTarget
from thalweg.codegen.cuda.tensor_map import TensorMapSpec
from thalweg.codegen.kernels import key_of
from thalweg.codegen.llvm.compile import object_code
from thalweg.codegen.machine import named
from thalweg.device.cuda.driver import Context
from thalweg.ir.kernel import Contraction, Kernel
from thalweg.platform.caches import Bounded
from thalweg.platform.forks import freed_after_fork

#: Compilation threads: LLVM and `ptxas`, which take most of the time, do not hold the GIL.
_COMPILERS = max(4, min(16, os.cpu_count() or 1))


@dataclass(frozen=True)
class Image:
    """The code of a kernel, and the other data that launches need."""

    code: bytes  # PTX, a cubin, or an object of the host
    entries: tuple[str, ...]
    scratch: int
    tensor_maps: tuple[TensorMapSpec, ...]
    ptx_size: int = 0  # bytes of the PTX that the code was compiled from

    def to_bytes(self) -> bytes:
        """The content of its cache entry: a line of metadata, and the code."""
        about = {"entries": self.entries, "scratch": self.scratch, "ptx": self.ptx_size}
        maps = [tensor_map.to_json() for tensor_map in self.tensor_maps]
        return json.dumps({**about, "maps": maps}).encode() + b"\n" + self.code

    @classmethod
    def from_bytes(cls, content: bytes) -> Image:
        """The inverse of `to_bytes`; raises ValueError, KeyError or TypeError for other content."""
        head, _, code = content.partition(b"\n")
        about: Any = json.loads(head)
        maps = tuple(TensorMapSpec.from_json(each) for each in about["maps"])
        sizes = int(about["scratch"]), maps, int(about["ptx"])
        return cls(code, tuple(about["entries"]), *sizes)


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel in the context of a device."""

    functions: tuple[int, ...]
    scratch: int
    tensor_maps: tuple[TensorMapSpec, ...]
    size: int  # bytes of code
    ptx_size: int
    sass_size: int  # 0 if the driver compiles the PTX


@dataclass(frozen=True)
class KernelRequest:
    """A request for a kernel. `guarded`: it does nothing if the fault word is set. `aligned`: its
    buffers begin at multiples of 16 bytes. `explain` converts compilation errors for the user."""

    kernel: Kernel
    guarded: bool
    aligned: bool
    explain: Callable[[Exception], Exception]

    def name(self, target: CudaTarget) -> str:
        """The name of its cache entry."""
        kernel = self.kernel
        tuned = tuned_schedule(kernel, target) if isinstance(kernel, Contraction) else None
        form = f"{self.guarded} {self.aligned} {tuned}"
        parts = f"cuda {target} {target.key} {form} {key_of(self.kernel)}"
        return sha256(parts.encode()).hexdigest()


class Kernels:
    """The loaded kernels of one device."""

    def __init__(self, context: Callable[[], Context], target: CudaTarget) -> None:
        self._context, self.target = context, target
        self._known = Bounded[str, LoadedKernel]("kernels of a GPU", 1 << 13)
        self._lock = freed_after_fork(threading.Lock())

    def load(self, requests: Sequence[KernelRequest]) -> list[LoadedKernel]:
        """The requested kernels, from the cache or compiled."""
        names = [request.name(self.target) for request in requests]
        wanted = dict(zip(names, requests, strict=True))
        with self._lock:
            missing = {n: r for n, r in wanted.items() if self._found(n) is None}
            for name, image in zip(missing, self._made(list(missing.values())), strict=True):
                disk = shared_disk()
                if disk is not None:
                    disk.write(name, image.to_bytes())
                self._known[name] = self._loaded(image)
                note(misses=1, code_bytes=len(image.code))
            return [self._known[name] for name in names]

    def find(self, names: Sequence[str]) -> list[LoadedKernel] | None:
        """The kernels with these names; None if one is not in the cache."""
        with self._lock:
            found = [self._found(name) for name in names]
        kernels = [kernel for kernel in found if kernel is not None]
        return kernels if len(kernels) == len(names) else None

    def _found(self, name: str) -> LoadedKernel | None:
        known = self._known.get(name)
        if known is not None:
            note(memory_hits=1)
        disk = shared_disk()
        content = disk.read(name) if known is None and disk is not None else None
        if content is None:
            return known
        try:
            known = self._known[name] = self._loaded(Image.from_bytes(content))
            note(disk_hits=1, code_bytes=known.size)
        except (ValueError, KeyError, TypeError, RuntimeError):
            return None  # an invalid entry: the kernel is compiled again
        return known

    def _made(self, requests: Sequence[KernelRequest]) -> list[Image]:
        if len(requests) < 2:
            return [self._compiled(request) for request in requests]
        with ThreadPoolExecutor(_COMPILERS) as threads:
            return list(threads.map(self._compiled, requests))

    def _compiled(self, request: KernelRequest) -> Image:
        try:
            made = emit(request.kernel, self.target, request.guarded, request.aligned)
        except Exception as error:
            raise request.explain(error) from error
        code, ptx_size = code_of(made, self.target)
        return Image(code, made.entries, made.scratch, made.tensor_maps, ptx_size)

    def _loaded(self, image: Image) -> LoadedKernel:
        functions = self._context().load(image.code, image.entries)
        code = image.code
        sizes = len(code), image.ptx_size, instruction_bytes(code) if image.ptx_size else 0
        return LoadedKernel(functions, image.scratch, image.tensor_maps, *sizes)


def code_of(kernel: CudaKernel, target: CudaTarget) -> tuple[bytes, int]:
    """The code that the target's driver loads, and the bytes of its PTX."""
    if target.is_emulated:
        return object_code(kernel.text, named("native")), 0
    ptx = to_ptx(kernel.text, target)
    return to_cubin(ptx, target) or ptx.encode() + b"\0", len(ptx)
