"""Switches between eager and graph mode, for the process or for a block."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager

from thalweg import protos
from thalweg.functions.devices import use_devices
from thalweg.functions.eager import EAGER, EagerGraph
from thalweg.functions.lazy_trace import fast_path_disabled
from thalweg.graph import graph as graph_module
from thalweg.graph.graph import Graph, get_default_graph, graphs
from thalweg.graph.subgraph import root
from thalweg.public import public
from thalweg.runtime.config import session_options


@public("enable_eager_execution", "contrib.eager.enable_eager_execution")
def enable_eager_execution(
    config: protos.ConfigProto | None = None,
    device_policy: int | None = None,
    execution_mode: int | None = None,
) -> None:
    """Run ops as they are written, in all threads from now on; call it at program startup.

    Args:
        config: a `tf.ConfigProto`: how many GPUs to use, which of them, and how much of their
            memory. All GPUs if None.
        device_policy: for compatibility: values are copied to the devices of the ops.
        execution_mode: for compatibility.
    """
    if graph_module.default_graph[0] is not Graph:
        return
    if graph_module.has_default_nodes():
        raise ValueError("tf.enable_eager_execution must be called at program startup.")
    if config is not None:
        use_devices(session_options(config))
    graph_module.default_graph[:] = [lambda: EAGER]
    graph_module.global_graph[:] = [EAGER]


@public("disable_eager_execution")
def disable_eager_execution() -> None:
    """Build graphs again, in all threads from now on.

    Example:
        >>> tf.disable_eager_execution()
        >>> tf.executing_eagerly()
        False
    """
    EAGER.flush()
    graph_module.default_graph[:] = [Graph]
    graph_module.forget_default_graph()


@public("disable_v2_behavior")
def disable_v2_behavior() -> None:
    """Nothing to do: unless eager execution is enabled, programs build graphs.

    Example:
        >>> tf.disable_v2_behavior()
        >>> tf.executing_eagerly()
        False
    """


@public("executing_eagerly", "contrib.eager.executing_eagerly", "contrib.eager.in_eager_mode")
def executing_eagerly() -> bool:
    """Whether ops of this thread run as they are written."""
    return get_default_graph() is EAGER


@public("eager_mode")
@contextmanager
def eager_mode() -> Generator[EagerGraph]:
    """Run ops as they are written inside the block; pending ops run at its end."""
    with graphs.pushed(EAGER):
        yield EAGER
        EAGER.flush()


@public("graph_mode")
def graph_mode() -> AbstractContextManager[Graph]:
    """Build a new graph inside the block."""
    return Graph().as_default()


@public("set_eager_sync")
def set_eager_sync(sync: bool) -> None:
    """Run each op immediately, so that errors are raised at its line. Slow: for debugging."""
    EAGER.flush()
    fast_path_disabled[0] += bool(sync) - EagerGraph.sync
    EagerGraph.sync = bool(sync)


@public("init_scope")
@contextmanager
def init_scope() -> Generator[None]:
    """Leave the bodies of functions, loops and conditionals, to create variables in the graph."""
    outer = root(get_default_graph())
    with graphs.pushed(outer), outer.control_dependencies(None):
        yield
