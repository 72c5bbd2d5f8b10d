"""Layers: objects that make their variables on the first call and share them on later ones.

A subclass gives `build` (make variables with `add_weight`) and `call` (the maths). The variables
live in a variable scope of the layer's own, opened below the scope of the first call, so that
`dense/kernel` is what a checkpoint calls them.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from thalweg.graph import nest
from thalweg.graph.collections import GraphKeys, add_to_collection, get_collection
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import as_dtype, float32
from thalweg.graph.graph import Graph, get_default_graph
from thalweg.graph.likes import MaybeNone, Structure
from thalweg.graph.node import Node, Tensor, as_node, reached
from thalweg.graph.scopes import colocate_with, name_scope
from thalweg.graph.shapes import TensorShape
from thalweg.platform.described import described
from thalweg.public import public, registered
from thalweg.variables.partitioned import PartitionedVariable
from thalweg.variables.scope import VariableScope, get_variable, variable_scope
from thalweg.variables.variable import VariableAggregation, VariableSynchronization

if TYPE_CHECKING:
    from thalweg.variables.initializers import InitializerLike

_NAMES_KEY = ("__layer_names",)


@public("layers.InputSpec")
class InputSpec:
    """What a layer demands of an input; None demands nothing."""

    def __init__(
        self,
        dtype: Any = None,
        shape: Sequence[int | None] | None = None,
        ndim: int | None = None,
        max_ndim: int | None = None,
        min_ndim: int | None = None,
        axes: dict[int, int | None] | None = None,
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.ndim = len(shape) if shape is not None else ndim
        self.max_ndim = max_ndim
        self.min_ndim = min_ndim
        self.axes = axes or {}

    def check(self, tensor: Tensor | None, layer: str) -> None:
        """Raise ValueError unless `tensor` is as demanded."""
        if tensor is None:
            raise _mismatch(layer, "it is None")
        sizes = tensor.shape.sizes
        if sizes is None:
            if self.ndim or self.max_ndim or self.min_ndim or self.axes:
                raise _mismatch(layer, "its rank is undefined, but the layer needs a defined rank")
            return
        self._check_rank(len(sizes), layer)
        if self.dtype is not None and as_dtype(tensor.dtype) != as_dtype(self.dtype):
            raise _mismatch(layer, f"expected dtype={self.dtype}, found dtype={tensor.dtype.name}")
        for axis, size in self.axes.items():
            if size is not None and sizes[axis] not in (size, None):
                raise _mismatch(layer, f"expected axis {axis} of size {size}, found {sizes}")
        wanted = TensorShape(self.shape)
        if not wanted.is_compatible_with(tensor.shape):
            raise _mismatch(layer, f"expected shape={wanted}, found shape={tensor.shape}")

    def _check_rank(self, rank: int, layer: str) -> None:
        if self.ndim is not None and rank != self.ndim:
            raise _mismatch(layer, f"expected ndim={self.ndim}, found ndim={rank}")
        if self.max_ndim is not None and rank > self.max_ndim:
            raise _mismatch(layer, f"expected max_ndim={self.max_ndim}, found ndim={rank}")
        if self.min_ndim is not None and rank < self.min_ndim:
            raise _mismatch(layer, f"expected min_ndim={self.min_ndim}, found ndim={rank}")


def _mismatch(layer: str, what: str) -> ValueError:
    return ValueError(f"Input 0 of layer {layer} is incompatible with the layer: {what}")


def resolve_activation(activation: Any) -> Callable[..., Any] | None:
    """An activation given as a function, a name ("relu") or None."""
    if activation is None or callable(activation):
        return activation
    if activation == "linear":
        return None
    found = registered(f"nn.{activation}") or registered(activation)
    if not callable(found):
        raise ValueError(f"Unknown activation function: {activation}")
    return cast("Callable[..., Any]", found)


def snake_case(name: str) -> str:
    """`BatchNormalization` as `batch_normalization`; private classes begin with `private`."""
    split = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    split = re.sub(r"([a-z])([A-Z])", r"\1_\2", split).lower()
    return f"private{split}" if split.startswith("_") else split


def _unique_name(base: str) -> str:
    """`base`, or `base_1` and so on if the graph has such layers already."""
    kept = get_default_graph().get_collection_ref(_NAMES_KEY)
    if not kept:
        kept.append({})
    counts: dict[str, int] = kept[0]
    number = counts.get(base, 0)
    counts[base] = number + 1
    return f"{base}_{number}" if number else base


#: What tells layers of a class apart, where they have it.
_SIZES = ("units", "num_units", "filters", "kernel_size", "strides", "pool_size", "rate", "axis")


@public("layers.Layer")
class Layer:
    """The base of layers: variables, losses and updates under one name.

    A subclass makes variables in `build(input_shape)` and computes in `call(inputs)`.

    Args:
        trainable: whether optimizers change the variables by default.
        name: the name of the layer, and the scope of its variables.
        dtype: the dtype of the variables; that of the first inputs if None.
        kwargs: `activity_regularizer` and so on.

    Example:
        >>> class Scale(tf.layers.Layer):
        ...     def build(self, input_shape):
        ...         self.factor = self.add_weight("factor", [], initializer=tf.ones_initializer())
        ...     def call(self, inputs):
        ...         return inputs * self.factor
        >>> layer = Scale(name="scale")
        >>> y = layer(tf.constant([1.0, 2.0]))
        >>> [v.name for v in layer.variables]
        ['scale/factor:0']
    """

    input_spec: Any = None
    built = False
    activity_regularizer: Callable[[Any], Any] | None = None
    _scope: VariableScope | None = None
    _reuse: Any = None
    _trainable = True
    _dtype: Any = None

    def __init__(
        self, trainable: bool = True, name: str | None = None, dtype: Any = None, **kwargs: Any
    ) -> None:
        scope, self._reuse = kwargs.pop("_scope", None), kwargs.pop("_reuse", None)
        self.activity_regularizer = kwargs.pop("activity_regularizer", None)
        if kwargs:
            raise TypeError(f"Keyword argument not understood: {next(iter(kwargs))}")
        self._trainable = trainable
        self._dtype = None if dtype is None else as_dtype(dtype)
        self._base_name = name or snake_case(type(self).__name__)
        self._name = name or _unique_name(self._base_name)
        self._graph = get_default_graph()
        self._trainable_weights: list[Any] = []
        self._non_trainable_weights: list[Any] = []
        self._losses: list[Any] = []
        self._updates: list[Any] = []
        self._metrics: list[Any] = []
        self._calls: list[tuple[Any, Any]] = []
        if scope:
            with variable_scope(scope) as captured:
                self._scope = captured

    def __deepcopy__(self, memo: dict[int, Any]) -> Layer:
        """A layer of its own in the same graph and scope, with the same variables so far."""
        copied = type(self).__new__(type(self))
        graph_parts = [self._graph, self._scope, *self.weights, *self._losses, *self._updates]
        memo |= {id(part): part for part in graph_parts} | {id(self): copied}
        for name, value in vars(self).items():
            vars(copied)[name] = copy.deepcopy(value, memo)
        return copied

    # What a layer has

    def __repr__(self) -> str:
        own = vars(self)
        facts = {fact: own.get(fact, own.get(f"_{fact}")) for fact in _SIZES}
        shapes = [str(weight.shape) for weight in self.weights]
        weights = f"[{', '.join(shapes)}]" if shapes else None
        return described(self, self._name, **facts, weights=weights)

    @property
    def name(self) -> str:
        """The name given, or one made of the class's."""
        return self._name

    @property
    def dtype(self) -> str | MaybeNone:
        """The dtype of the variables; the first input decides where none was given."""
        return None if self._dtype is None else self._dtype.name

    @property
    def graph(self) -> Graph:
        """The graph the layer was made in."""
        return self._graph

    @property
    def scope_name(self) -> str:
        """The name of the variable scope, which the first call opens."""
        if self._scope is None:
            raise ValueError(
                f'No name available for layer scope: layer "{self._name}" was not used'
            )
        return self._scope.name

    @property
    def trainable(self) -> bool:
        """Whether the variables are trained."""
        return self._trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        self._trainable = value

    @property
    def trainable_variables(self) -> list[Any]:
        """The variables that are trained."""
        return list(self._trainable_weights) if self._trainable else []

    @property
    def non_trainable_variables(self) -> list[Any]:
        """The variables that are not trained."""
        if self._trainable:
            return list(self._non_trainable_weights)
        return self._trainable_weights + self._non_trainable_weights

    @property
    def variables(self) -> list[Any]:
        """All variables, trainable ones first."""
        return self.trainable_variables + self.non_trainable_variables

    @property
    def trainable_weights(self) -> list[Any]:
        """The same as `trainable_variables`."""
        return self.trainable_variables

    @property
    def non_trainable_weights(self) -> list[Any]:
        """The same as `non_trainable_variables`."""
        return self.non_trainable_variables

    @property
    def weights(self) -> list[Any]:
        """The same as `variables`."""
        return self.variables

    @property
    def losses(self) -> list[Any]:
        """The losses added by `add_loss` and by regularizers."""
        return self._losses

    @property
    def updates(self) -> list[Any]:
        """The ops added by `add_update`."""
        return self._updates if self._trainable else []

    @property
    def metrics(self) -> list[Any]:
        """The values added by `add_metric`."""
        return self._metrics

    def count_params(self) -> int:
        """The number of elements of all variables."""
        if not self.built:
            raise ValueError(f"count_params of {self._name}: the layer isn't built, call it first")
        return sum(variable.shape.num_elements() for variable in self.variables)

    # What a layer was called on

    @property
    def input(self) -> Structure:
        """The input of the only call."""
        return self._only_call("input")[0]

    @property
    def output(self) -> Structure:
        """The output of the only call."""
        return self._only_call("output")[1]

    @property
    def input_shape(self) -> Structure:
        """The shape of the input of the only call, as a tuple."""
        return nest.map_structure(_sizes, self._only_call("input_shape")[0])

    @property
    def output_shape(self) -> Structure:
        """The shape of the output of the only call, as a tuple."""
        return nest.map_structure(_sizes, self._only_call("output_shape")[1])

    def _only_call(self, what: str) -> tuple[Any, Any]:
        if len(self._calls) != 1:
            raise AttributeError(
                f"Layer {self._name} was called {len(self._calls)} times: '{what}' is defined "
                "after exactly one call"
            )
        return self._calls[0]

    # What a subclass gives

    def build(self, input_shape: Structure) -> None:
        """Make the variables. Called once, before the first `call`."""
        self.built = True

    def call(self, inputs: Structure, *args: Any, **kwargs: Any) -> Structure:
        """The maths of the layer."""
        return inputs

    def compute_output_shape(self, input_shape: Structure) -> TensorShape:
        """The shape of the output for an input shape."""
        raise NotImplementedError(f"{type(self).__name__} does not tell its output shape")

    def compute_mask(self, inputs: Structure, mask: Structure = None) -> Structure:
        """The mask of the output: layers pass none on."""
        return mask

    # What `build` and `call` use

    def add_weight(
        self,
        name: str,
        shape: Any,
        dtype: Any = None,
        initializer: InitializerLike = None,
        regularizer: Callable[[Any], Any] | None = None,
        trainable: bool | None = None,
        constraint: Callable[[Any], Any] | None = None,
        use_resource: bool | None = None,
        synchronization: int = VariableSynchronization.AUTO,
        aggregation: int = VariableAggregation.NONE,
        partitioner: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """The variable of this name in the layer's scope: made, or found where it reuses."""
        trained = synchronization != VariableSynchronization.ON_READ and trainable is not False
        self._open_scope(None)
        existing = set(_ids(get_collection(GraphKeys.GLOBAL_VARIABLES)))
        with self._in_scope(self.built or self._reuse) as scope, name_scope(_names(scope)):
            variable = get_variable(
                name,
                shape=shape,
                dtype=as_dtype(dtype or self._dtype or float32),
                initializer=initializer,
                trainable=trained and self._trainable,
                constraint=constraint,
                partitioner=partitioner,
                use_resource=use_resource,
                synchronization=synchronization,
                aggregation=aggregation,
                **kwargs,
            )
            if regularizer is not None and not existing.intersection(_ids(_parts(variable))):
                self._regularize(name, variable, regularizer)
        self._keep(variable, trained)
        return variable

    def add_variable(self, *args: Any, **kwargs: Any) -> Any:
        """The same as `add_weight`."""
        return self.add_weight(*args, **kwargs)

    def _keep(self, variable: Any, trained: bool) -> None:
        kept = self._trainable_weights if trained else self._non_trainable_weights
        for part in _parts(variable):
            if not any(part is other for other in kept):
                kept.append(part)

    def _regularize(self, name: str, variable: Any, regularizer: Callable[[Any], Any]) -> None:
        for part in _parts(variable):
            with colocate_with(part.op), name_scope(f"{name}/Regularizer"):
                loss = regularizer(part)
            if loss is not None:
                self.add_loss(loss)

    def add_loss(self, losses: Structure, inputs: Structure = None) -> None:
        """Add losses that the model's total should contain."""
        for loss in nest.flatten(losses):
            self._losses.append(loss)
            add_to_collection(GraphKeys.REGULARIZATION_LOSSES, loss)

    def add_update(self, updates: Structure, inputs: Structure = None) -> None:
        """Add ops that training steps should run, such as those of moving averages."""
        for update in nest.flatten(updates):
            self._updates.append(update)
            if self._trainable:
                add_to_collection(GraphKeys.UPDATE_OPS, update)

    def add_metric(
        self, value: Structure, aggregation: str | None = None, name: str | None = None
    ) -> None:
        """Add a value worth watching."""
        self._metrics.append(value)

    def get_losses_for(self, inputs: Structure) -> list[Any]:
        """The losses that depend on `inputs`; those that depend on no input if that is None."""
        return self._depending(self._losses, inputs)

    def get_updates_for(self, inputs: Structure) -> list[Any]:
        """The updates that depend on `inputs`; those that depend on no input if that is None."""
        return self._depending(self.updates, inputs)

    def _depending(self, values: Sequence[Any], inputs: Any) -> list[Any]:
        if inputs is not None:
            return [value for value in values if _depends(value, nest.flatten(inputs))]
        seen = [leaf for given, _ in self._calls for leaf in nest.flatten(given)]
        return [value for value in values if not _depends(value, seen)]

    # Calls

    def __call__(self, inputs: Structure, *args: Any, **kwargs: Any) -> Structure:
        """Build if need be, then call, in the layer's scope."""
        self._open_scope(kwargs.pop("scope", None))
        inputs = nest.map_structure(_tensor_of_number, inputs)
        first = nest.flatten(inputs)[0]
        if self._dtype is None and hasattr(first, "dtype"):
            self._dtype = as_dtype(first.dtype).base_dtype
        with self._in_scope(True if self.built else self._reuse) as scope:
            if "scope" in inspect.signature(self.call).parameters:
                kwargs["scope"] = scope
            with name_scope(_names(scope), values=None):
                self._check_inputs(inputs)
                if not self.built:
                    self._build(inputs)
                outputs = self.call(inputs, *args, **kwargs)
                self._regularize_activity(outputs)
        self._calls.append((inputs, outputs))
        return outputs

    def apply(self, inputs: Structure, *args: Any, **kwargs: Any) -> Structure:
        """The same as calling the layer."""
        return self(inputs, *args, **kwargs)

    def _build(self, inputs: Any) -> None:
        self.build(nest.map_structure(_shape, inputs))
        self.built = True

    def _open_scope(self, scope: Any) -> None:
        """Take the scope's unique name when the layer is first used."""
        if self._scope is not None:
            return
        if self._reuse:
            opened = variable_scope(self._base_name if scope is None else scope)
        else:
            opened = variable_scope(scope, default_name=self._base_name)
        with opened as captured:
            self._scope = captured

    def _in_scope(self, reuse: Any) -> variable_scope:
        return variable_scope(self._scope, reuse=reuse, auxiliary_name_scope=False)

    def _check_inputs(self, inputs: Any) -> None:
        if self.input_spec is None:
            return
        for spec, tensor in zip(nest.flatten(self.input_spec), nest.flatten(inputs), strict=False):
            spec.check(tensor, self._name)

    def _regularize_activity(self, outputs: Any) -> None:
        if self.activity_regularizer is None:
            return
        for output in nest.flatten(outputs):
            with name_scope("ActivityRegularizer"):
                loss = self.activity_regularizer(output)
            self.add_loss(loss, inputs=output)


def _names(scope: VariableScope) -> str:
    return scope.original_name_scope


def _tensor_of_number(value: Any) -> Any:
    """Arrays and numbers as tensors; whatever else a layer may take as it is."""
    is_number = isinstance(value, np.ndarray | np.generic | int | float)
    return convert_to_tensor(cast("float", value)) if is_number else value


def _shape(tensor: Any) -> TensorShape:
    return tensor.shape


def _sizes(tensor: Any) -> Any:
    return tensor.shape.sizes


def _ids(values: Sequence[Any]) -> list[int]:
    return [id(value) for value in values]


def _parts(variable: Any) -> list[Any]:
    return list(variable) if isinstance(variable, PartitionedVariable) else [variable]


def _depends(value: Any, sources: Sequence[Any]) -> bool:
    """Whether one of `sources` is among what `value` is computed from."""
    wanted = set(map(as_node, sources))

    def before(node: Node) -> Iterator[Node]:
        if node not in wanted:  # what lies behind a source may be a whole network
            yield from (tensor.op for tensor in node.inputs)
            yield from node.controls

    return not wanted.isdisjoint(reached([as_node(value)], before))
