"""Access to Ray, an optional dependency that is imported on first use."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from thalweg import errors

_PATIENCE = 60.0  # seconds to wait for a placement group
_LOCAL_CPUS = 64  # logical CPUs of a local Ray: tasks share the cores, and jobs may grow


class Connection(NamedTuple):
    """How this process is connected to Ray."""

    is_new: bool  # whether `connect` made the connection
    is_local: bool  # whether `connect` started a Ray on this machine for it


def library() -> Any:
    """The `ray` module; the ImportError says how to install it."""
    try:
        return import_module("ray")
    except ImportError as error:
        raise ImportError("Ray is not installed: `pip install 'thalweg[ray]'`") from error


def connect(address: str | None, runtime_env: Mapping[str, Any] | None = None) -> Connection:
    """Connect this process to Ray, unless it is connected already.

    Args:
        address: the address of a cluster, as for `ray.init`. By default, RAY_ADDRESS or a cluster
            on this machine is used; if there is none, a local Ray is started.
        runtime_env: the runtime environment of the actors, as for `ray.init`.
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
    """A class as a Ray actor class with reserved resources and other actor options."""
    custom = dict(resources)
    reserved = {
        "num_cpus": custom.pop("CPU", 0),
        "num_gpus": custom.pop("GPU", 0),
        "resources": custom or None,
    }
    return library().remote(actor).options(**reserved, **options)


def reserve(bundles: Sequence[Mapping[str, float]], strategy: str, name: str) -> Any:
    """Create a placement group with one bundle per task and wait until it is ready."""
    needed = [dict(resources) for resources in bundles]
    groups = import_module("ray.util.placement_group")
    group = groups.placement_group(needed, strategy=strategy, name=name)
    if group.wait(_PATIENCE):
        return group
    groups.remove_placement_group(group)
    raise errors.ResourceExhaustedError(
        None,
        None,
        f"Ray has found no room for {len(needed)} tasks in {_PATIENCE:g} s: they need {needed}, "
        f"and of {library().cluster_resources()} it has {library().available_resources()} free",
    )


def release(group: Any) -> None:
    """Remove a placement group; Ray kills the actors in it."""
    import_module("ray.util.placement_group").remove_placement_group(group)


def bundle(group: Any, index: int) -> Any:
    """The scheduling strategy of an actor that uses one bundle of a placement group."""
    strategies = import_module("ray.util.scheduling_strategies")
    return strategies.PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)


def node_address() -> str:
    """The address of the Ray node that this actor runs on."""
    ray = library()
    node_id = ray.get_runtime_context().get_node_id()
    return next(node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == node_id)
