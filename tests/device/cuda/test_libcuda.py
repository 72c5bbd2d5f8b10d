"""Graphs of the real driver, with a mock of its library that records calls."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from thalweg.codegen.cuda.launch import LaunchShape
from thalweg.codegen.cuda.tensor_map import ROUNDED_FLOAT32, TensorMap
from thalweg.device.cuda import libcuda
from thalweg.device.cuda.driver import KernelNode
from thalweg.device.cuda.libcuda import LibcudaContext


class Function:
    """A mock function: every handle that it returns is a new number."""

    argtypes: Any = None

    def __init__(self, name: str, calls: list[tuple[str, list[Any]]]) -> None:
        self._name, self._calls = name, calls

    def __call__(self, *arguments: Any) -> int:
        self._calls.append((self._name, [getattr(one, "value", one) for one in arguments]))
        first = arguments[0] if arguments else None
        if isinstance(made := getattr(first, "_obj", None), ctypes.c_void_p) and not made.value:
            made.value = 1000 + len(self._calls)
        return 0


class Library:
    def __init__(self) -> None:
        self.calls: list[tuple[str, list[Any]]] = []

    def __getattr__(self, name: str) -> Function:
        function = self.__dict__[name] = Function(name, self.calls)
        return function

    def named(self, name: str) -> list[list[Any]]:
        return [arguments for called, arguments in self.calls if called == name]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setattr(libcuda, "library", lambda: made)
    return made


def kernel(words: Any, function: int = 7) -> KernelNode:
    shape = LaunchShape((5, 1, 1), (64, 1, 1), 48)
    return KernelNode(function, shape, ctypes.addressof(words), len(words))


def parameters(address: int, count: int) -> list[int]:
    """The words that the parameters of a launch point to."""
    found = ctypes.cast(address, ctypes.POINTER(ctypes.c_void_p))
    return [ctypes.c_int64.from_address(found[n] or 0).value for n in range(count)]


def test_a_single_kernel_is_launched_without_a_graph(library: Library) -> None:
    graph = LibcudaContext(ctypes.c_int(0), "GPU:0").graph()
    words = (ctypes.c_int64 * 2)(11, 12)
    node = graph.add_kernel(kernel(words), ())
    graph.finish()
    for stream in (3, 3, 4):
        graph.launch(stream)
    graph.update(node, kernel((ctypes.c_int64 * 2)(21, 22)))
    graph.launch(4)
    assert not library.named("cuGraphInstantiateWithFlags") and not library.named("cuGraphLaunch")
    launches = library.named("cuLaunchKernel")
    assert [launch[:8] for launch in launches] == [[7, 5, 1, 1, 64, 1, 1, 48]] * 4
    assert [launch[8] for launch in launches] == [3, 3, 4, 4]
    assert parameters(launches[-1][9], 2) == [21, 22]


def test_several_kernels_are_one_launch(library: Library) -> None:
    graph = LibcudaContext(ctypes.c_int(0), "GPU:0").graph()
    words = (ctypes.c_int64 * 1)(11)
    first = graph.add_kernel(kernel(words), ())
    second = graph.add_kernel(kernel(words, 8), [first])
    graph.finish()
    graph.launch(3)
    graph.update(second, kernel(words, 8))
    graph.launch(5)
    ((runnable, *_),) = library.named("cuGraphInstantiateWithFlags")
    launches = library.named("cuGraphLaunch")
    assert [stream for _, stream in launches] == [3, 5]
    assert {handle for handle, _ in launches} == {runnable._obj.value}
    assert len(library.named("cuGraphExecKernelNodeSetParams_v2")) == 1
    assert not library.named("cuLaunchKernel")


def test_a_thread_enters_a_context_once(library: Library) -> None:
    context = LibcudaContext(ctypes.c_int(0), "GPU:0")
    for _ in range(3):
        context.wait(9)
    assert len(library.named("cuCtxSetCurrent")) == 1
    assert library.named("cuStreamSynchronize") == [[9]] * 3


@pytest.mark.parametrize("dtype, number", [("float32", 7), (ROUNDED_FLOAT32, 11)])
def test_tensor_maps_of_tf32_round(library: Library, dtype: str, number: int) -> None:
    tensor_map = TensorMap(1 << 20, dtype, 4, (64, 64), (256,), (32, 64), (1, 1))
    LibcudaContext(ctypes.c_int(0), "GPU:0").encode(tensor_map, 1 << 12)
    ((_, kind, *_),) = library.named("cuTensorMapEncodeTiled")
    assert kind == number
