"""Helpers of `tensorflow.python.framework` that libraries call: of `ops`, and `Defun`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from thalweg.alias import names
from thalweg.variables.variable import ResourceVariable

tf = names.root()

_TensorLike = tf.Tensor | tf.SparseTensor | tf.IndexedSlices
_dense_types: list[type] = [tf.Tensor, tf.Variable]
_uids = itertools.count(1)


def register_dense_tensor_like_type(tensor_type: type) -> None:
    """Let objects of a type pass for tensors; they have `name` and `dtype`."""
    for attribute in ("name", "dtype"):
        if not isinstance(getattr(tensor_type, attribute, None), property):
            raise TypeError(f"Type {tensor_type.__name__} does not define a `{attribute}` property")
    _dense_types.append(tensor_type)


def is_dense_tensor_like(t: Any) -> bool:
    """Whether `t` is a tensor, a variable, or of a type registered as such."""
    return isinstance(t, tuple(_dense_types))


def shape_internal(
    input: Any, name: str | None = None, optimize: bool = True, out_type: Any = tf.int32
) -> Any:
    """The shape of a tensor; what is known of it is known without an op in any case."""
    return tf.shape(input, name=name, out_type=out_type)


def internal_convert_to_tensor(
    value: Any,
    dtype: Any = None,
    name: str | None = None,
    as_ref: bool = False,
    preferred_dtype: Any = None,
    ctx: Any = None,
    accept_symbolic_tensors: bool = True,
) -> Any:
    """`tf.convert_to_tensor`."""
    return tf.convert_to_tensor(
        value, dtype=dtype, name=name, as_ref=as_ref, preferred_dtype=preferred_dtype
    )


def convert_to_tensor_or_composite(value: Any, dtype: Any = None, name: str | None = None) -> Any:
    """A tensor, or the sparse tensor or slices that `value` is."""
    if isinstance(value, tf.SparseTensor | tf.IndexedSlices):
        return value
    return tf.convert_to_tensor(value, dtype=dtype, name=name)


def uid() -> int:
    """A number that this function has not given before."""
    return next(_uids)


def strip_name_scope(name: str, export_scope: str | None) -> str:
    """A name without the scope that it begins with."""
    if not export_scope:
        return name
    scope = export_scope.rstrip("/")
    reference = "^" if name.startswith("^") else ""
    return reference + name[len(reference) :].removeprefix(f"{scope}/")


def prepend_name_scope(name: str, import_scope: str | None) -> str:
    """A name in a scope."""
    if not import_scope:
        return name
    reference = "^" if name.startswith("^") else ""
    return f"{reference}{import_scope.rstrip('/')}/{name[len(reference) :]}"


def name_from_scope_name(name: str) -> str:
    """The name of a node of a scope's name."""
    return name.removesuffix("/")


def get_name_scope() -> str:
    """The current name scope."""
    return tf.get_default_graph().get_name_scope()


def executing_eagerly_outside_functions() -> bool:
    """Whether ops run as they are written, outside of functions."""
    return tf.executing_eagerly()


def _get_graph_from_inputs(op_input_list: Iterable[Any], graph: Any = None) -> Any:  # pyright: ignore[reportUnusedFunction] - found by name
    """The graph that some tensors are in, the default one where there are none."""
    found = [x.graph for x in op_input_list if hasattr(x, "graph")]
    wanted = graph or next(iter(found), tf.get_default_graph())
    if any(other is not wanted for other in found):
        asked = "are not from the passed-in graph" if graph else "must be from the same graph"
        raise ValueError(f"Inputs {asked}.")
    return wanted


def get_to_proto_function(collection_name: str) -> None:
    """None: collections are serialized by their types."""


def is_resource_variable(var: Any) -> bool:
    """Whether reads of a variable give the value of that moment of a step."""
    return isinstance(var, ResourceVariable)


class Defun:
    """Makes a Python function one that graphs call: `@Defun(tf.float32)`; its body is inlined.

    Args:
        input_types: the dtypes of the arguments, which are converted to them.
        kwargs: `func_name`; `grad_func(*inputs, *gradients)`, another Defun, or
            `python_grad_func(op, *gradients)`, either of which gives the gradients of the inputs;
            `shape_func(op)`, the shapes of the outputs.
    """

    def __init__(self, *input_types: Any, **kwargs: Any) -> None:
        self.input_types = input_types
        self.options = kwargs

    def __call__(self, func: Callable[..., Any]) -> _DefinedFunction:
        """The function, to be called with tensors."""
        return _DefinedFunction(func, self.input_types, self.options)


def _from_inputs(function: Callable[..., Any], node: Any, *gradients: Any) -> Any:
    return function(*node.inputs, *gradients)


class _DefinedFunction:
    """A function of tensors with a name, dtypes of its arguments, and perhaps its own gradient."""

    def __init__(
        self, func: Callable[..., Any], input_types: Sequence[Any], options: dict[str, Any]
    ) -> None:
        self._func, self._options = func, options
        self._types = [tf.as_dtype(kind) for kind in input_types]
        self.name: str = options.get("func_name") or func.__name__
        self.__name__, self.__doc__ = func.__name__, func.__doc__
        self.grad_func_name = getattr(options.get("grad_func"), "name", None)
        self.python_grad_func = options.get("python_grad_func")

    @property
    def declared_input_types(self) -> tuple[Any, ...]:
        """The dtypes of the arguments."""
        return tuple(self._types)

    def add_to_graph(self, g: Any) -> None:
        """Nothing to add: a call inlines the body."""

    def __call__(self, *args: Any, name: str | None = None, **kwargs: Any) -> Any:
        """Call the function."""
        if self._types and len(args) != len(self._types):
            raise ValueError(f"Expected {len(self._types)} arguments, got {len(args)}")
        kinds = self._types or [None] * len(args)
        with tf.name_scope(name or self.name):
            inputs = [tf.convert_to_tensor(x, dtype=d) for x, d in zip(args, kinds, strict=True)]
            outputs = self._call(inputs)
        return self._shaped(inputs, outputs)

    def _call(self, inputs: list[Any]) -> Any:
        differentiate = self._gradient()
        if differentiate is None:
            return self._func(*inputs)

        @tf.custom_gradient
        def with_gradient(*tensors: Any) -> Any:
            outputs = self._func(*tensors)
            node = self._node(tensors, outputs)
            return outputs, functools.partial(differentiate, node)

        return with_gradient(*inputs)

    def _gradient(self) -> Callable[..., Any] | None:
        if self.python_grad_func is not None:
            return self.python_grad_func
        function = self._options.get("grad_func")
        return None if function is None else functools.partial(_from_inputs, function)

    def _node(self, inputs: Iterable[Any], outputs: Any) -> Any:
        """What gradient and shape functions see of the call."""
        flat = tuple(tf.nest.flatten(outputs))
        return SimpleNamespace(
            inputs=tuple(inputs), outputs=flat, type=self.name, name=self.name, op=self
        )

    def _shaped(self, inputs: list[Any], outputs: Any) -> Any:
        infer = self._options.get("shape_func")
        if infer is not None:
            flat = tf.nest.flatten(outputs)
            for tensor, shape in zip(flat, infer(self._node(inputs, outputs)), strict=True):
                tensor.set_shape(shape)
        return outputs


def set_shapes_for_outputs(op: Any) -> None:
    """Nothing to do: a node has the shapes of its outputs when it is made."""
