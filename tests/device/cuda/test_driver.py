"""The emulated driver: memory, copies, the order of graphs, sticky errors."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from thalweg import errors
from thalweg.codegen.cuda.compile import ptxas
from thalweg.device.cuda import presence, ptx
from thalweg.device.cuda.discovery import find_driver
from thalweg.device.cuda.driver import Condition, KernelNode
from thalweg.device.cuda.emulated import EmulatedContext, EmulatedDriver


@pytest.fixture
def context() -> EmulatedContext:
    return EmulatedDriver(1 << 20).open(0, "GPU:0")


def test_copies_round_trip(context: EmulatedContext) -> None:
    value, actual = np.arange(100.0), np.zeros(100)
    one, other, stream = context.allocate(800), context.allocate(800), context.stream()
    context.upload(one, value.ctypes.data, 800, stream)
    context.copy(other, one, 800, stream)
    context.download(actual.ctypes.data, other, 800, stream)
    context.wait(stream)
    np.testing.assert_array_equal(actual, value)
    assert one % 256 == other % 256 == 0


def test_memory_is_exhausted_and_freed(context: EmulatedContext) -> None:
    taken = context.allocate(900_000)
    with pytest.raises(errors.ResourceExhaustedError, match="GPU:0: out of memory"):
        context.allocate(900_000)
    context.free(taken)
    assert context.memory() == (1 << 20, 1 << 20)
    context.allocate(900_000)


def test_the_order_of_a_graph_follows_only_its_edges(context: EmulatedContext) -> None:
    ran: list[int] = []
    graph = context.graph()
    events = [context.event() for _ in range(5)]
    context.record = ran.append  # type: ignore[method-assign]
    first = graph.add_event(events[0], ())
    graph.add_event(events[1], ())
    graph.add_event(events[2], ())
    after = graph.add_event(events[3], (first,))
    graph.add_event(events[4], (after, first))
    graph.finish()
    graph.launch(context.stream())
    assert sorted(ran) == events
    assert ran.index(events[0]) < ran.index(events[3]) < ran.index(events[4])
    assert ran != events  # nodes without edges run in another order


def test_parameters_of_a_kernel_change_only_by_an_update(
    context: EmulatedContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def note(kernel: KernelNode, words: int) -> None:
        seen.append(ctypes.c_int64.from_address(words).value)

    monkeypatch.setattr(context, "run", note)
    words = np.array([1], np.int64)
    kernel = KernelNode(1, None, words.ctypes.data, 1)  # type: ignore[arg-type]
    graph = context.graph()
    node = graph.add_kernel(kernel, ())
    graph.finish()
    words[0] = 2
    graph.launch(0)
    graph.update(node, kernel)
    graph.launch(0)
    assert seen == [1, 2]


def test_conditional_graphs_run_while_a_byte_is_set(context: EmulatedContext) -> None:
    condition = Condition(context.allocate(1), context.allocate(4), context.pin(1))
    truth = ctypes.c_uint8.from_address(condition.truth)
    fault = ctypes.c_int32.from_address(condition.fault)
    stops = ctypes.c_uint8.from_address(condition.stop)
    fault.value = 0
    ran: list[str] = []

    def record(event: int) -> None:
        ran.append(names[event])
        if names[event] == "iteration":
            truth.value = truths.pop(0)
        if len(ran) > 20:
            stops.value = 1  # ends an endless loop

    context.record = record  # type: ignore[method-assign]
    wanted = ("before", "iteration", "inner", "last", "after", "endless")
    names = {context.event(): name for name in wanted}
    before, iteration, inner, last, after, endless = names
    graph = context.graph()
    first = graph.add_event(before, ())
    loop, body = graph.add_conditional(condition, True, (first,))
    second = body.add_event(iteration, ())
    _, branch = body.add_conditional(condition, False, (second,))
    branch.add_event(inner, ())
    branch.finish()
    _, branch = body.add_conditional(replace(condition, negated=True), False, (second,))
    branch.add_event(last, ())
    branch.finish()
    body.finish()
    graph.add_event(after, (loop,))
    graph.finish()
    truths = [1, 0]
    truth.value, stops.value = 1, 0
    graph.launch(0)
    assert ran == ["before", "iteration", "inner", "iteration", "last", "after"]
    ran.clear()
    truth.value, fault.value = 1, 7
    graph.launch(0)
    assert ran == ["before", "after"]
    ran.clear()
    fault.value = 0
    graph = context.graph()
    _, body = graph.add_conditional(condition, True, ())
    body.add_event(endless, ())
    body.finish()
    graph.finish()
    truth.value = 1
    graph.launch(0)
    assert len(ran) == 21


def test_kernels_of_the_driver_assemble() -> None:
    assembler = ptxas()
    if assembler is None:
        pytest.skip("there is no ptxas")
    for text in (ptx.COPY_TEXT, ptx.CONDITION_TEXT):
        command = [assembler, "-arch=sm_90", "-c", "-o", "/dev/null", "/dev/stdin"]
        done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr


def test_a_sticky_error_fails_all_later_calls(context: EmulatedContext) -> None:
    held = context.allocate(256)
    context.fail_with(700)
    for _ in range(2):
        with pytest.raises(errors.InternalError, match=r"CUDA_ERROR_ILLEGAL_ADDRESS.*is closed"):
            context.allocate(256)
    assert context.lost is not None
    context.free(held)  # finalizers still work


def test_other_errors_leave_the_context_open(context: EmulatedContext) -> None:
    assert "CUDA error 1," in str(context.failure(1, "cuMemAlloc", "invalid"))
    assert context.lost is None


def test_no_gpu_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    presence.library.cache_clear()
    monkeypatch.setattr(presence, "LIBRARY", "libcuda-that-is-not-there.so.1")
    monkeypatch.delenv("THALWEG_CUDA")
    find_driver.cache_clear()
    assert find_driver() == (None, False)
    presence.library.cache_clear()


@pytest.mark.parametrize(
    ("name", "value"),
    [("CUDA_VISIBLE_DEVICES", ""), ("CUDA_VISIBLE_DEVICES", "-1"), ("THALWEG_CUDA", "0")],
)
def test_a_hidden_gpu_is_not_found(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    find_driver.cache_clear()
    assert find_driver()[0] is None
