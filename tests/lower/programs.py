"""The kernels of small graphs as text, which tests of the lowering compare."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

import thalweg as tf
from thalweg.codegen.machine import host
from thalweg.device.compiled_kernel import kernels_of
from thalweg.device.cpu.device import CpuDevice, cpu_device
from thalweg.device.cpu.program import Program
from thalweg.device.local import local_devices
from thalweg.graph.node import Node, Tensor
from thalweg.lower.dynamic_shapes import Varying, adapted
from thalweg.lower.lowered import Lowered
from thalweg.lower.lowering import lower
from thalweg.lower.specialise import Region
from thalweg.runtime import engine
from thalweg.runtime.compiled import Executable
from thalweg.runtime.plan import Plan, Step, plan


def planned(*fetches: Any) -> Plan:
    """The plan of a step in which every placeholder is fed."""
    tensors = tuple(tf.convert_to_tensor(f) for f in fetches if not isinstance(f, Node))
    targets = tuple(f for f in fetches if isinstance(f, Node))
    graph = (tensors[0] if tensors else targets[0]).graph
    feeds = tuple(n.outputs[0] for n in graph.nodes if n.type == "Placeholder")
    return plan(Step(tensors, targets, feeds), local_devices({}))


def units(*fetches: Any) -> list[Any]:
    """The units of a step in order: host nodes by type, regions by the types of their nodes."""
    return [
        sorted(node.type for node in i.nodes) if isinstance(i.call, Executable) else i.node.type
        for i in planned(*fetches).instructions
    ]


def regions_of(*fetches: Any) -> list[Region]:
    """The regions of a step."""
    calls = [instruction.call for instruction in planned(*fetches).instructions]
    return [call.region for call in calls if isinstance(call, Executable)]


def lowered(*fetches: Any) -> Lowered:
    """The one region of a step, lowered for the shapes its graph knows."""
    (region,) = regions_of(*fetches)
    shapes = {t: shape(t) for t in (*region.inputs, *region.references)}
    return lower(region, shapes, local_devices({})[0].target)


def use_target(monkeypatch: pytest.MonkeyPatch, **numbers: Any) -> None:
    """Lower steps for a processor with other parameters from now on."""
    devices = [CpuDevice()]
    devices[0].target = replace(host(), **numbers)
    for module in (sys.modules[__name__], engine):
        monkeypatch.setattr(module, "local_devices", lambda *_, **__: devices)


def shape(tensor: Tensor) -> tuple[int, ...]:
    """The whole shape of a tensor, which the graph must know."""
    return tuple(tensor.shape.as_list())


def native(*fetches: Any, threads: int = 1) -> Program:
    """The one region of a step, compiled."""
    made = lowered(*fetches)
    kernels = adapted(made.launches, Varying().see(made.launches))
    return cpu_device(threads=threads).load(made, kernels)


def kernels(*fetches: Any) -> list[str]:
    """The kernels of a step in order: `contraction matmul+relu`, `loops sum`."""
    return [f"{kernel.kind} {kernel.name}" for kernel in kernels_of(native(*fetches))]
