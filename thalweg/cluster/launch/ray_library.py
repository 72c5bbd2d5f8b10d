"""Ray, which is an extra: found when it is used, with advice where it is not there."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from thalweg import errors

_PATIENCE = 60.0  # seconds until Ray must have found room for tasks
_LOCAL_CPUS = 64  # a local Ray's CPUs are but a count: tasks share the cores, and jobs may grow


class Connection(NamedTuple):
    """How this process is connected to Ray."""

    is_new: bool  # it was not before
    is_local: bool  # to a Ray that was started for it, on this machine


def library() -> Any:
    """The package; an ImportError says how to get it."""
    try:
        return import_module("ray")
    except ImportError as error:
        raise ImportError("Ray is not installed: `pip install 'thalweg[ray]'`") from error


def connect(address: str | None, runtime_env: Mapping[str, Any] | None = None) -> Connection:
    """Connect this process to Ray, unless it is connected.

    Args:
        address: of a cluster, as `ray.init` takes it. Without one, RAY_ADDRESS or a cluster of this
            machine is used, and where there is none, a local Ray is started.
        runtime_env: what tasks find on their machines.
    """
    ray = library()
    if ray.is_initialized():
        return Connection(is_new=False, is_local=False)
    options: dict[str, Any] = {"runtime_env": dict(runtime_env)} if runtime_env else {}
    options |= {"log_to_driver": False, "configure_logging": False}
    if address != "local":
        try:
            ray.init(address or os.environ.get("RAY_ADDRESS", "auto"), **options)
            return Connection(is_new=True, is_local=False)
        except ConnectionError:
            if address is not None or "RAY_ADDRESS" in os.environ:
                raise
    cpus = max(_LOCAL_CPUS, os.cpu_count() or 1)
    ray.init("local", num_cpus=cpus, include_dashboard=False, **options)
    return Connection(is_new=True, is_local=True)


def remote(actor: type, resources: Mapping[str, float], **options: Any) -> Any:
    """A class as one of actors that are given resources."""
    others = dict(resources)
    given = {
        "num_cpus": others.pop("CPU", 0),
        "num_gpus": others.pop("GPU", 0),
        "resources": others or None,
    }
    return library().remote(actor).options(**given, **options)


def reserve(bundles: Sequence[Mapping[str, float]], strategy: str, name: str) -> Any:
    """A placement group with room for each of some tasks."""
    asked = [dict(each) for each in bundles]
    groups = import_module("ray.util.placement_group")
    group = groups.placement_group(asked, strategy=strategy, name=name)
    if group.wait(_PATIENCE):
        return group
    groups.remove_placement_group(group)
    raise errors.ResourceExhaustedError(
        None,
        None,
        f"Ray has found no room for {len(asked)} tasks in {_PATIENCE:g} s: they need {asked}, "
        f"and of {library().cluster_resources()} it has {library().available_resources()} free",
    )


def release(group: Any) -> None:
    """Give a placement group back; what runs in it ends."""
    import_module("ray.util.placement_group").remove_placement_group(group)


def bundle(group: Any, index: int) -> Any:
    """The scheduling strategy of an actor that takes one bundle of a placement group."""
    strategies = import_module("ray.util.scheduling_strategies")
    return strategies.PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)


def node_address() -> str:
    """The address of the machine that an actor runs on, as Ray knows it."""
    ray = library()
    own = ray.get_runtime_context().get_node_id()
    return next(node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == own)
