"""The parts that a monitored session needs besides the graph: how to initialise, check and save it.

What a program does not give is taken from the graph's collections, or made and put there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from thalweg.graph.collections import GraphKeys
from thalweg.graph.graph import get_default_graph
from thalweg.graph.likes import MaybeNone, UserObject
from thalweg.graph.node import Node, Tensor
from thalweg.ops.core.basic import group
from thalweg.platform import tf_logging
from thalweg.public import public
from thalweg.saved.saver import Saver
from thalweg.summary.constructors import merge_all
from thalweg.variables.collections import (
    global_variables,
    global_variables_initializer,
    local_variables_initializer,
    report_uninitialized_variables,
    tables_initializer,
)

_PARTS = ("init_op", "ready_op", "ready_for_local_init_op", "local_init_op", "summary_op", "saver")


@public("train.Scaffold")
class Scaffold:
    """Ops and objects that go with a graph; `finalize` completes them and closes the graph.

    Args:
        init_op, init_feed_dict: what initializes a model without checkpoint, and what it is fed.
        init_fn: `init_fn(scaffold, session)` runs behind `init_op`.
        ready_op: gives the names of variables that are not initialized.
        ready_for_local_init_op: the same, for what local initialization needs.
        local_init_op, local_init_feed_dict: what initializes local variables and tables.
        summary_op: the summaries to write.
        saver: the Saver.
        copy_from_scaffold: another one, for what is not given here.

    Example:
        >>> v = tf.Variable(1.0)
        >>> scaffold = tf.train.Scaffold(init_fn=lambda scaffold, session: v.load(7.0, session))
        >>> creator = tf.train.ChiefSessionCreator(scaffold)
        >>> with tf.train.MonitoredSession(creator) as session:
        ...     session.run(v)
        np.float32(7.0)
    """

    def __init__(
        self,
        init_op: Node | Tensor | None = None,
        init_feed_dict: Mapping[Any, Any] | None = None,
        init_fn: Callable[[Scaffold, Any], Any] | None = None,
        ready_op: Tensor | None = None,
        ready_for_local_init_op: Tensor | None = None,
        local_init_op: Node | Tensor | None = None,
        summary_op: Tensor | None = None,
        saver: Saver | None = None,
        copy_from_scaffold: Scaffold | None = None,
        local_init_feed_dict: Mapping[Any, Any] | None = None,
    ) -> None:
        self._init_op = init_op
        self._init_feed_dict = init_feed_dict
        self._user_init_fn = init_fn
        self._ready_op = ready_op
        self._ready_for_local_init_op = ready_for_local_init_op
        self._local_init_op = local_init_op
        self._local_init_feed_dict = local_init_feed_dict
        self._summary_op = summary_op
        self._saver = saver
        if copy_from_scaffold is not None:
            self._take_missing(copy_from_scaffold)

    def _take_missing(self, other: object) -> None:
        if not isinstance(other, Scaffold):
            raise TypeError("copy_from_scaffold is not a Scaffold instance.")
        for name, value in vars(other).items():
            if vars(self).get(name) is None:
                setattr(self, name, value)

    @property
    def init_op(self) -> Node | Tensor | MaybeNone:
        """Initializes the variables that a checkpoint restores."""
        return self._init_op

    @property
    def init_feed_dict(self) -> Mapping[Any, Any] | None:
        """The feeds of `init_op`."""
        return self._init_feed_dict

    @property
    def init_fn(self) -> Callable[[Any], Any] | None:
        """A function of the session, called after `init_op`."""
        given = self._user_init_fn
        return None if given is None else lambda session: given(self, session)

    @property
    def ready_op(self) -> Tensor | MaybeNone:
        """Returns the names of uninitialized variables."""
        return self._ready_op

    @property
    def ready_for_local_init_op(self) -> Tensor | MaybeNone:
        """Returns the names of uninitialized variables that `local_init_op` needs."""
        return self._ready_for_local_init_op

    @property
    def local_init_op(self) -> Node | Tensor | MaybeNone:
        """Initializes local variables and tables, which no checkpoint contains."""
        return self._local_init_op

    @property
    def local_init_feed_dict(self) -> Mapping[Any, Any] | None:
        """The feeds of `local_init_op`."""
        return self._local_init_feed_dict

    @property
    def summary_op(self) -> Tensor | MaybeNone:
        """The merged summaries."""
        return self._summary_op

    @property
    def saver(self) -> Saver | MaybeNone:
        """The saver of the session."""
        return self._saver

    def finalize(self) -> Scaffold:
        """Create the missing parts and finalize the graph."""
        for name in _PARTS:
            if getattr(self, f"_{name}") is None:
                make = _DEFAULTS[name]
                key = getattr(GraphKeys, "SAVERS" if name == "saver" else name.upper())
                setattr(self, f"_{name}", Scaffold.get_or_default(name, key, make))
        self.saver.build()
        get_default_graph().finalize()
        tf_logging.info("Graph was finalized.")
        return self

    @staticmethod
    def get_or_default(
        arg_name: str, collection_key: str, default_constructor: Callable[[], Any]
    ) -> UserObject:
        """The only item of a collection; if it is empty, a new item, which is added to it."""
        graph = get_default_graph()
        items = graph.get_collection(collection_key)
        if len(items) > 1:
            raise RuntimeError(
                f'More than one item in the collection "{collection_key}". Please indicate which '
                "one to use by passing it to the tf.Scaffold constructor as:  "
                f"tf.Scaffold({arg_name}=item to use)"
            )
        if items:
            return items[0]
        result = default_constructor()
        if result is not None:
            graph.add_to_collection(collection_key, result)
        return result

    @staticmethod
    def default_local_init_op() -> Any:
        """An op that initialises the local variables and the tables."""
        return group(local_variables_initializer(), tables_initializer())


_DEFAULTS: dict[str, Callable[[], Any]] = {
    "init_op": global_variables_initializer,
    "ready_op": report_uninitialized_variables,
    "ready_for_local_init_op": lambda: report_uninitialized_variables(global_variables()),
    "local_init_op": Scaffold.default_local_init_op,
    "summary_op": merge_all,
    "saver": lambda: Saver(sharded=True, allow_empty=True),
}
