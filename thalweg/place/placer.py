"""Placement: each node of a step gets one of the session's devices.

A node goes to the first device that satisfies what its scopes asked for. A request that no device
satisfies is an error that names the user's line, unless soft placement lets it fall back. A kind of
device that this machine does not have at all (a GPU) falls back with a warning, so that programs
written for one run without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from thalweg import errors
from thalweg.graph.device import DeviceSpec
from thalweg.graph.node import Node
from thalweg.platform import tf_logging
from thalweg.platform.caches import Bounded

Placement = dict[Node, str]


def place(nodes: Sequence[Node], devices: Sequence[str], soft: bool = False) -> Placement:
    """The device of every node."""
    specs = [DeviceSpec.from_string(name) for name in devices]
    chosen: dict[str, str] = {"": devices[0]}
    placement: Placement = {}
    for node in nodes:
        wanted = node.device
        if wanted not in chosen:
            chosen[wanted] = _satisfy(node, devices, specs, soft)
        placement[node] = chosen[wanted]
    return placement


def _satisfy(node: Node, devices: Sequence[str], specs: Sequence[DeviceSpec], soft: bool) -> str:
    wanted = DeviceSpec.from_string(node.device)
    for name, spec in zip(devices, specs, strict=True):
        if _matches(wanted, spec):
            return name
    if soft:
        return devices[0]
    if _lacks_kind(wanted, specs):
        _warn_absent(node)
        return devices[0]
    raise errors.InvalidArgumentError(
        None,
        node,
        f"Cannot assign a device to node '{node.name}': no device matches '{node.device}'. "
        f"Devices here: {', '.join(devices)}. Change the tf.device scope, or let nodes fall back "
        "with tf.ConfigProto(allow_soft_placement=True)",
    )


def _lacks_kind(wanted: DeviceSpec, specs: Sequence[DeviceSpec]) -> bool:
    """Whether a task is here that has no device of the wanted kind."""
    task = replace(wanted, device_type=None, device_index=None)
    is_here = any(_matches(task, spec) for spec in specs)
    return is_here and wanted.device_type not in {spec.device_type for spec in specs}


_warned = Bounded[str, None]("devices that nobody has", 1_000)


def _warn_absent(node: Node) -> None:
    """Say once per device name that its nodes run elsewhere."""
    if node.device not in _warned:
        _warned[node.device] = None
        tf_logging.warning(
            "No device like %s here: its nodes run on the CPU (first: '%s', made at %s)",
            node.device,
            node.name,
            node.origin,
        )


def _matches(wanted: DeviceSpec, device: DeviceSpec) -> bool:
    return all(
        asked is None or asked == getattr(device, part) for part, asked in vars(wanted).items()
    )
