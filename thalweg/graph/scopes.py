"""`tf.name_scope` and friends: scopes on the graph that the given values belong to."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from thalweg.graph.build import graph_of
from thalweg.graph.graph import Graph, get_default_graph
from thalweg.public import public


@public("name_scope")
@contextmanager
def name_scope(
    name: str | None, default_name: str | None = None, values: Sequence[Any] | None = None
) -> Generator[str]:
    """Prefix the names of nodes made inside; the graph of `values` becomes the default one."""
    chosen = default_name if name is None else name
    if chosen is None and values is not None:
        raise ValueError(
            f"At least one of name ({name}) and default_name ({default_name}) must be provided."
        )
    graph = graph_of(values or ())
    with graph.as_default(), graph.name_scope(chosen) as scope:
        yield scope


@public("op_scope")
@contextmanager
def op_scope(
    values: Sequence[Any], name: str | None, default_name: str | None = None
) -> Generator[str]:
    """The old order of `name_scope`'s arguments."""
    with name_scope(name, default_name, values) as scope:
        yield scope


#: What TensorFlow uses when only the op is seeded: the same programs give the same numbers.
DEFAULT_GRAPH_SEED = 87654321
_LARGEST_SEED = (1 << 31) - 1


@public("get_seed", "random.get_seed")
def get_seed(op_seed: int | None) -> tuple[int | None, int | None]:
    """The (graph seed, op seed) pair that a random op made now uses."""
    graph: Graph = get_default_graph()
    if graph.seed is None and op_seed is None:
        return None, None
    first = DEFAULT_GRAPH_SEED if graph.seed is None else graph.seed
    second = graph.version if op_seed is None else op_seed
    pair = first % _LARGEST_SEED, second % _LARGEST_SEED
    # A pair of zeros would mean "not seeded" to the op.
    return (0, _LARGEST_SEED) if pair == (0, 0) else pair


@public("set_random_seed", "random.set_random_seed")
def set_random_seed(seed: int | None) -> None:
    """Seed every random op made from now on in the default graph."""
    get_default_graph().seed = seed
