"""LLVM text to machine code, on several threads at once, and machine code into memory.

The text of a module and a target come in. An object file goes out, or its assembly, or the
addresses of an object's functions in this process.

LLVM is thread-safe if each thread has its own context and target machine; options are global.
llvmlite serializes all calls, so calls here go to its library directly: long ones without the GIL,
short ones with it.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import get_ident
from typing import Any, Literal, Protocol, TypeVar

from thalweg.codegen.llvm.emitted import Passes
from thalweg.codegen.llvm.object_file import EXTERNAL, ObjectFile
from thalweg.codegen.machine import CpuTarget, host_supports, llvm, named
from thalweg.platform.caches import memoized
from thalweg.platform.executable import executable

#: Global LLVM options that code may be compiled with, and how each is reset.
Option = Literal["", "-disable-lsr=true", "-scev-cheap-expansion-budget=32"]
_RESET_OPTIONS = {
    "-disable-lsr=true": "-disable-lsr=false",
    "-scev-cheap-expansion-budget=32": "-scev-cheap-expansion-budget=4",
}


class LlvmLock:
    """A shared lock around LLVM: any number of threads hold it that need the same option.

    A fork waits until no other thread holds it, so that the child does not inherit LLVM in the
    middle of a call.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._threads: list[int] = []
        self._option: Option = ""
        self._forking = 0

    @contextmanager
    def acquired(self, option: Option | None = None) -> Generator[None]:
        """Hold the lock, with an option set, or any option if None.

        It is reentrant, since finalizers may run on a thread that holds it; they get the current
        option, with any of which code is correct.
        """
        with self._changed:
            if get_ident() not in self._threads:
                self._changed.wait_for(lambda: self._is_free_for(option))
                self._set(self._option if option is None else option)
            self._threads.append(get_ident())
        try:
            yield
        finally:
            with self._changed:
                self._threads.remove(get_ident())
                self._changed.notify_all()

    def _is_free_for(self, option: Option | None) -> bool:
        return not self._forking and (option in (None, self._option) or not self._threads)

    def _set(self, option: Option) -> None:
        if option == self._option:
            return
        if self._option:
            llvm().set_option("", _RESET_OPTIONS[self._option])
        if option:
            llvm().set_option("", option)
        self._option = option

    def before_fork(self) -> None:
        """Wait until no other thread holds the lock, and keep all out."""
        self._changed.acquire()
        self._forking += 1
        self._changed.wait_for(lambda: all(thread == get_ident() for thread in self._threads))

    def after_fork(self) -> None:
        """Admit threads again."""
        self._forking -= 1
        self._changed.notify_all()
        self._changed.release()

    def reset_in_child(self) -> None:
        """In the child: forget the parent's threads but the one that forked."""
        self._threads = [thread for thread in self._threads if thread == get_ident()]
        self._forking = 1  # its own fork; others were pending in the parent
        self.after_fork()


llvm_lock = LlvmLock()
os.register_at_fork(
    before=llvm_lock.before_fork,
    after_in_parent=llvm_lock.after_fork,
    after_in_child=llvm_lock.reset_in_child,
)


class Machine(Protocol):
    """What LLVM needs to know about a target."""

    @property
    def triple(self) -> str:
        """The target triple."""
        ...

    @property
    def cpu(self) -> str:
        """The model of the processor."""
        ...

    @property
    def features(self) -> str:
        """Instruction set extensions, on or off: "+avx2,-avx512f"."""
        ...


@dataclass(frozen=True)
class Toolchain:
    """A target machine, its data layout and pass managers, used by one thread at a time."""

    machine: Any
    layout: str
    passes: dict[str, Any] = field(default_factory=dict[str, Any])


@contextmanager
def toolchain_for(target: Machine) -> Generator[Toolchain]:
    """Borrow a toolchain that no other thread uses meanwhile."""
    resting = _idle_toolchains(target)
    try:
        tools = resting.pop()
    except IndexError:
        with llvm_lock.acquired():
            machine = new_machine(target)
            tools = Toolchain(machine, str(machine.target_data))
    try:
        yield tools
    finally:
        resting.append(tools)


def release_toolchains(target: Machine) -> None:
    """Free all idle toolchains but one: each takes most of a MiB."""
    with llvm_lock.acquired():
        del _idle_toolchains(target)[1:]


@memoized(16)
def _idle_toolchains(target: Machine) -> list[Toolchain]:
    return []


def new_machine(target: Machine) -> Any:
    """A target machine."""
    # Position-independent code in the small model reaches its constants relative to itself.
    known = llvm().Target.from_triple(target.triple)
    return known.create_target_machine(target.cpu, target.features, 2, "pic", "small")


@contextmanager
def parsed_module(text: str, triple: str, layout: str) -> Generator[Any]:
    """Parse LLVM text into a module for a target, in a context of its own; freed on exit."""
    context = _function("LLVMPY_ContextCreate")()
    module: Any = None
    try:
        with llvm().ffi.OutputString(owned=False) as error:
            found = _function("LLVMPY_ParseAssembly")(context, text.encode(), error)
            module = llvm().ModuleRef(found, context)
            if error or _function("LLVMPY_VerifyModule")(module, error):
                raise RuntimeError(f"LLVM takes no such text: {error}")
        _function("LLVMPY_SetTarget")(module, triple.encode())
        _function("LLVMPY_SetDataLayout")(module, layout.encode())
        yield module
    finally:  # under the lock, so that no fork comes in between
        if module is not None:
            _function("LLVMPY_DisposeModule")(module)
            module.detach()
        _function("LLVMPY_ContextDispose")(context)


def run_over_module(passes: Any, module: Any, builder: Any) -> None:
    """Run passes over a module."""
    _function("LLVMPY_RunNewModulePassManager", holds_gil=False)(passes, module, builder)


def run_over_function(passes: Any, function: Any, builder: Any) -> None:
    """Run passes over a function."""
    _function("LLVMPY_RunNewFunctionPassManager", holds_gil=False)(passes, function, builder)


def machine_code(machine: Any, module: Any, is_object: bool) -> bytes:
    """The machine code of a module, as an object file or as assembly."""
    with llvm().ffi.OutputString(owned=False) as error:
        memory = _function("LLVMPY_TargetMachineEmitToMemory", holds_gil=False)(
            machine, module, is_object, error
        )
        if not memory:
            raise RuntimeError(str(error))
    try:
        start, size = _function("LLVMPY_GetBufferStart"), _function("LLVMPY_GetBufferSize")
        return ctypes.string_at(start(memory), size(memory))
    finally:
        _function("LLVMPY_DisposeMemoryBuffer")(memory)


@memoized(100)
def _function(name: str, holds_gil: bool = True) -> Any:
    """An LLVM function, called without llvmlite's lock. It holds the GIL unless it takes long: most
    are shorter than the wait to get the GIL back, the switch interval of other threads, which is
    some milliseconds."""
    library = llvm().ffi.lib
    known = getattr(library, name)
    try:
        function = (ctypes.PyDLL if holds_gil else ctypes.CDLL)(library._name)[name]
    except (AttributeError, OSError):
        return known
    function.argtypes, function.restype = known.argtypes, known.restype
    return function


#: How often the function pipeline runs over "iterations", to replace loops by their final values
#: where these follow from the initial ones. The first round finds the trip count, a minimum of two
#: (more arithmetic than LLVM's default expansion budget allows); the second finds the loop dead.
_ROUNDS = 2
#: A linker takes time per added library in proportion to those it already has.
_LIBRARIES_PER_LINKER = 256
_LINKING = threading.RLock()
_libraries = itertools.count()
_linkers: list[Any] = []  # the current one, if any

Result = TypeVar("Result")


def object_code(text: str, target: CpuTarget, passes: Passes = "loops") -> bytes:
    """Compile a module to an object file whose only undefined symbols are `EXTERNAL`."""
    code = _optimize_and(text, target, passes, partial(machine_code, is_object=True))
    missing = set(ObjectFile(code).undefined()) - EXTERNAL
    if missing:
        raise RuntimeError(f"A kernel calls what no kernel may call: {', '.join(sorted(missing))}.")
    return code


def assembly(text: str, target: CpuTarget, passes: Passes = "loops") -> str:
    """The assembly of a module, in the syntax of the processor's manufacturer."""
    return _optimize_and(text, target, passes, partial(machine_code, is_object=False)).decode()


def optimised(text: str, target: CpuTarget, passes: Passes = "loops") -> str:
    """The text of a module after LLVM's passes."""
    return _optimize_and(text, target, passes, lambda machine, module: str(module))


def place(code: bytes, functions: Sequence[str], target: CpuTarget) -> tuple[int, ...]:
    """Load an object into executable memory, never to be unloaded; its functions' addresses."""
    if not host_supports(target):
        raise RuntimeError(f"This processor cannot run code for {target.name} ({target.cpu}).")
    flat = ObjectFile(code).flat(functions)
    if flat is not None:
        content, offsets = flat
        start = executable(content)
        return tuple([start + offset for offset in offsets])
    return _link(code, functions)


def _link(code: bytes, functions: Sequence[str]) -> tuple[int, ...]:
    """Load an object by LLVM's linker: some 0.2 ms each, ten times as long as without."""
    with llvm_lock.acquired(), _LINKING:
        # A library per object: kernels may have functions of the same names.
        library = llvm().JITLibraryBuilder().add_object_img(code)
        for name in functions:
            library.export_symbol(name)
        number = next(_libraries)
        placed = library.link(_linker(number), f"kernel{number}")
        placed.detach()  # never unloaded: a thread may be in the code when Python shuts down
        return tuple(placed[name] for name in functions)


def _optimize_and(
    text: str, target: CpuTarget, passes: Passes, finish: Callable[[Any, Any], Result]
) -> Result:
    """Parse a module, run the passes that pay for it, and return `finish(machine, module)`.

    For explicit vectors in simple loops two passes pay, loop rotation and instruction combining:
    without them kernels are up to 20% slower. The whole O1 pipeline takes three times as long and
    made no kernel faster; it runs over "iterations" to remove their loops. For "tiles" none pays:
    passes take 67% more time for 1% of speed. Without loop strength reduction, which gains tiles
    nothing either, they compile 20% faster.
    """
    option: Option = "-disable-lsr=true" if passes == "tiles" else "-scev-cheap-expansion-budget=32"
    with (
        toolchain_for(target) as tools,
        llvm_lock.acquired(option),
        parsed_module(text, target.triple, tools.layout) as module,
    ):
        if passes != "tiles":
            _simplify(module, tools, passes)
        return finish(tools.machine, module)


def _simplify(module: Any, tools: Toolchain, wanted: Passes) -> None:
    if wanted not in tools.passes:
        tools.passes[wanted] = _passes(tools.machine, wanted)
    builder, whole, single, rounds = tools.passes[wanted]
    run_over_module(whole, module, builder)
    for _ in range(rounds):
        for function in module.functions:
            if not function.is_declaration:
                run_over_function(single, function, builder)


def _passes(machine: Any, wanted: Passes) -> tuple[Any, Any, Any, int]:
    """The pass builder, the module passes, the function passes, and how often the latter run."""
    options = llvm().create_pipeline_tuning_options(speed_level=1)
    options.loop_vectorization = options.slp_vectorization = False
    options.loop_unrolling = options.loop_interleaving = False
    builder = llvm().create_pass_builder(machine, options)
    whole = llvm().create_new_module_pass_manager()
    whole.add_always_inliner_pass()
    whole.add_post_order_function_attributes_pass()  # what cannot throw needs no unwind tables
    if wanted == "iterations":
        return builder, whole, builder.getFunctionPassManager(), _ROUNDS
    single = llvm().create_new_function_pass_manager()
    single.add_loop_rotate_pass()
    single.add_instruction_combine_pass()
    return builder, whole, single, 1


def _linker(number: int) -> Any:
    """The linker for library `number`. A full linker is dropped; its code stays."""
    if number % _LIBRARIES_PER_LINKER == 0:
        machine = new_machine(named("native"))
        for full in _linkers:
            full.detach()
        _linkers[:] = [
            llvm().create_lljit_compiler(machine, use_jit_link=True, suppress_errors=True)
        ]
    return _linkers[0]
