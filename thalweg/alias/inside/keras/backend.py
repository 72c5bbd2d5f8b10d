"""`tensorflow.python.keras.backend`, as far as Keras 2.3.1 is built on it: settings and state.

The functions that compute are in `keras_backend_ops`, recurrence in `keras_backend_rnn`.
"""

from __future__ import annotations

import itertools
import weakref
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from thalweg.alias import names
from thalweg.alias.inside.keras.backend_ops import (  # what it publishes besides
    binary_crossentropy,
    categorical_crossentropy,
    hard_sigmoid,
    random_binomial,
    random_normal,
    random_uniform,
    sparse_categorical_crossentropy,
    truncated_normal,
)
from thalweg.alias.inside.keras.backend_rnn import rnn
from thalweg.alias.inside.keras.backend_settings import (
    epsilon,
    floatx,
    image_data_format,
    set_epsilon,
    set_floatx,
    set_image_data_format,
)

__all__ = [
    "binary_crossentropy",
    "categorical_crossentropy",
    "epsilon",
    "hard_sigmoid",
    "image_data_format",
    "random_binomial",
    "random_normal",
    "random_uniform",
    "rnn",
    "set_epsilon",
    "set_floatx",
    "set_image_data_format",
    "sparse_categorical_crossentropy",
    "truncated_normal",
]

tf = names.root()


class _State:
    """What layers share: the session that they run in, and who initializes variables."""

    session: Any = None
    is_initialization_manual = False


_learning_phases: weakref.WeakKeyDictionary[Any, Any] = (
    weakref.WeakKeyDictionary()
)  # graph -> 0, 1 or a placeholder
_uids: weakref.WeakKeyDictionary[Any, Any] = (
    weakref.WeakKeyDictionary()
)  # graph -> prefix -> the last number


def cast_to_floatx(x: Any) -> Any:
    """A tensor or an array in the default dtype."""
    if isinstance(x, tf.Tensor | tf.Variable | tf.SparseTensor):
        return tf.cast(x, dtype=floatx())
    return np.asarray(x, dtype=floatx())


def manual_variable_initialization(value: bool) -> None:
    """Whether variables are left to the user to initialize."""
    _State.is_initialization_manual = value


def get_graph() -> Any:
    """The graph that layers are built in."""
    return tf.get_default_graph()


def get_uid(prefix: str = "") -> int:
    """The next number for names that begin with `prefix`."""
    counters = _uids.setdefault(get_graph(), defaultdict(lambda: itertools.count(1)))
    return next(counters[prefix])


def reset_uids() -> None:
    """Begin to count names anew."""
    _uids.pop(get_graph(), None)


def learning_phase() -> Any:
    """0 for testing, 1 for training, or the placeholder that says it."""
    graph = get_graph()
    if graph not in _learning_phases:
        with tf.name_scope(""):
            phase = tf.placeholder_with_default(False, shape=(), name="keras_learning_phase")
        _learning_phases[graph] = phase
    return _learning_phases[graph]


def symbolic_learning_phase() -> Any:
    """The placeholder of the learning phase."""
    return learning_phase()


def set_learning_phase(value: Any) -> None:
    """Fix the learning phase at 0 or 1."""
    if value not in (0, 1):
        raise ValueError("Expected learning phase to be 0 or 1.")
    _learning_phases[get_graph()] = value


def get_session(op_input_list: Any = ()) -> Any:
    """The session that layers run in: the default one, else one of Keras's own."""
    session = tf.get_default_session()
    if session is None:
        if _State.session is None or _State.session.graph is not get_graph():
            _State.session = tf.Session(config=tf.ConfigProto(allow_soft_placement=True))
        session = _State.session
    if not _State.is_initialization_manual:
        with session.graph.as_default():
            _initialize(session)
    return session


def set_session(session: Any) -> None:
    """Let layers run in a session."""
    _State.session = session


def clear_session() -> None:
    """Forget the graph, the session and all numbers of names."""
    tf.reset_default_graph()
    reset_uids()
    _State.session = None
    _learning_phases.clear()


def _initialize(session: Any) -> None:
    """Initialize the variables that Keras has not initialized yet."""
    fresh = [v for v in tf.global_variables() if not getattr(v, "_keras_initialized", False)]
    if not fresh:
        return
    known = session.run([tf.is_variable_initialized(v) for v in fresh])
    waiting = [v for v, is_set in zip(fresh, known, strict=True) if not is_set]
    for variable in fresh:
        variable._keras_initialized = True
    session.run(tf.variables_initializer(waiting))


def variable(value: Any, dtype: Any = None, name: str | None = None, constraint: Any = None) -> Any:
    """A variable with an initial value."""
    kind = dtype or floatx()
    if hasattr(value, "tocoo"):
        coordinates = value.tocoo()
        indices = np.stack([coordinates.row, coordinates.col], 1).astype(np.int64)
        sparse_tensor = tf.SparseTensor(indices, coordinates.data, coordinates.shape)
        sparse_tensor._keras_shape, sparse_tensor._uses_learning_phase = coordinates.shape, False
        return sparse_tensor
    return tf.Variable(value, dtype=tf.as_dtype(kind), name=name, constraint=constraint)


def constant(value: Any, dtype: Any = None, shape: Any = None, name: str | None = None) -> Any:
    """A constant tensor."""
    return tf.constant(value, dtype=dtype or floatx(), shape=shape, name=name or "Const")


def placeholder(
    shape: Any = None,
    ndim: int | None = None,
    dtype: Any = None,
    sparse: bool = False,
    name: str | None = None,
) -> Any:
    """A placeholder of a shape or of a number of dimensions."""
    kind = dtype or floatx()
    if shape is None and ndim is not None:
        shape = (None,) * ndim
    if sparse:
        return tf.sparse_placeholder(kind, shape=shape, name=name)
    return tf.placeholder(kind, shape=shape, name=name)


def batch_get_value(ops: Sequence[Any]) -> list[Any]:
    """The values of several variables."""
    return get_session(ops).run(list(ops)) if ops else []


def get_value(x: Any) -> Any:
    """The value of a variable."""
    return x.eval(session=get_session())


def set_value(x: Any, value: Any) -> None:
    """Set a variable to an array."""
    batch_set_value([(x, value)])


def batch_set_value(tuples: Iterable[tuple[Any, Any]]) -> None:
    """Set several variables."""
    assignments: list[Any] = []
    feeds: dict[Any, Any] = {}
    for x, given in tuples:
        value = np.asarray(given, dtype=x.dtype.base_dtype.as_numpy_dtype)
        target = getattr(x, "_assign_placeholder", None)
        if target is None:
            target = tf.placeholder(x.dtype.base_dtype, shape=value.shape)
            x._assign_placeholder, x._assign_op = target, x.assign(target)
        assignments.append(x._assign_op)
        feeds[target] = value
    if assignments:
        get_session().run(assignments, feed_dict=feeds)


class GraphExecutionFunction:
    """Runs outputs and updates of a graph for values of its inputs."""

    def __init__(
        self,
        inputs: Any,
        outputs: Any,
        updates: Any = None,
        name: str | None = None,
        **session_kwargs: Any,
    ) -> None:
        if not isinstance(updates or [], list | tuple):
            raise TypeError("`updates` in a Keras backend function should be a list or tuple.")
        self.inputs = list(tf.nest.flatten(inputs))
        self.outputs_structure = outputs
        self.outputs = [
            tf.convert_to_tensor(x) if _is_dense(x) else x for x in tf.nest.flatten(outputs)
        ]
        with tf.control_dependencies([x for x in self.outputs if isinstance(x, tf.Tensor)]):
            self.updates_op = tf.group(*[self._update(update) for update in list(updates or [])])
        self.name = name
        self.feed_dict: dict[Any, Any] = session_kwargs.pop("feed_dict", None) or {}
        self.fetches: list[Any] = list(session_kwargs.pop("fetches", None) or [])
        self.fetch_callbacks: dict[Any, Any] = {}
        self.run_options = session_kwargs.pop("options", None)
        self.run_metadata = session_kwargs.pop("run_metadata", None)
        self.session_kwargs = session_kwargs

    def _update(self, update: Any) -> Any:
        return tf.assign(*update) if isinstance(update, tuple) else update

    def __call__(self, inputs: Any) -> Any:
        """The outputs for values of the inputs."""
        values = list(tf.nest.flatten(inputs))
        feeds = dict(self.feed_dict)
        for target, value in zip(self.inputs, values, strict=True):
            if value is not None:
                feeds[target] = _fed(value)
        feeds = _evaluated(feeds)
        results = get_session().run(
            [self.outputs, self.updates_op, self.fetches],
            feed_dict=feeds,
            options=self.run_options,
            run_metadata=self.run_metadata,
            **self.session_kwargs,
        )
        for fetch, value in zip(self.fetches, results[2], strict=True):
            if fetch in self.fetch_callbacks:
                self.fetch_callbacks[fetch](value)
        return tf.nest.pack_sequence_as(self.outputs_structure, results[0])


def _evaluated(feeds: dict[Any, Any]) -> dict[Any, Any]:
    """Feeds with the values of tensors, which stand for batches that the graph itself makes."""
    symbolic = {
        target: value
        for target, value in feeds.items()
        if isinstance(value, tf.Tensor | tf.Variable | tf.SparseTensor)
    }
    return feeds | get_session().run(symbolic) if symbolic else feeds


def _is_dense(x: Any) -> bool:
    return not isinstance(x, tf.SparseTensor | tf.Operation)


def _fed(value: Any) -> Any:
    """What a session takes for a value: a sparse matrix as indices, values and shape."""
    if not hasattr(value, "tocoo"):
        return value
    coordinates = value.tocoo()
    indices = np.stack([coordinates.row, coordinates.col], 1).astype(np.int64)
    return tf.SparseTensorValue(indices, coordinates.data, coordinates.shape)


def function(
    inputs: Any, outputs: Any, updates: Any = None, name: str | None = None, **kwargs: Any
) -> Any:
    """A Python function of arrays that runs a part of the graph."""
    return GraphExecutionFunction(inputs, outputs, updates=updates, name=name, **kwargs)
