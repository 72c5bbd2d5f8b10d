"""Small native functions: compiles LLVM text to functions that Python can call.

They are for loops over bytes that NumPy has no function for, such as checksums. The text names no
target: LLVM compiles it for the host processor. A call releases the GIL.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import os
import threading
from collections.abc import Mapping
from functools import cache
from typing import Any

# A fork waits until no thread is inside LLVM, so that the child does not inherit a broken state.
_LOCK = threading.RLock()
os.register_at_fork(
    before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
)
_libraries = itertools.count()

Function = Any  # a function of ctypes
#: The types of a function: its result, then its arguments.
Types = tuple[Any, ...]


def functions(text: str, types: Mapping[str, Types]) -> list[Function]:
    """Compile a module; returns the functions with these names and types, which are never freed."""
    with _LOCK:
        library = _llvm().JITLibraryBuilder().add_object_img(_object(text))
        for name in types:
            library.export_symbol(name)
        linked = library.link(_linker(), f"platform{next(_libraries)}")
        linked.detach()  # never unloaded: a thread may still run it when Python shuts down
        return [ctypes.CFUNCTYPE(*signature)(linked[name]) for name, signature in types.items()]


def _object(text: str) -> bytes:
    llvm, machine = _llvm(), _machine()
    module = llvm.parse_assembly(text, context=llvm.create_context())
    module.triple, module.data_layout = llvm.get_process_triple(), str(machine.target_data)
    module.verify()
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    passes.getModulePassManager().run(module, passes)
    return machine.emit_object(module)


@cache
def _llvm() -> Any:
    """LLVM, imported on first use, since that is slow."""
    binding = importlib.import_module("llvmlite.binding")
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding


def _new_machine() -> Any:
    llvm = _llvm()
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=_features(),
        opt=2,
        reloc="pic",
        codemodel="small",
    )


_machine = cache(_new_machine)


def has(*features: str) -> bool:
    """Whether the processor has all of these features, by LLVM's names."""
    return {f"+{feature}" for feature in features} <= set(_features().split(","))


def _features() -> str:
    try:
        return _llvm().get_host_cpu_features().flatten()
    except RuntimeError:  # LLVM does not support the query here
        return ""


@cache
def _linker() -> Any:
    return _llvm().create_lljit_compiler(_new_machine(), use_jit_link=True, suppress_errors=True)
