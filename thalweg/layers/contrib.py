"""`tf.contrib.layers`: the older functions for common layers, made of today's.

They call their variables `weights` and `biases`, take the activation as `activation_fn` and add
the variables to the collection of model variables.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

from thalweg.graph import nest
from thalweg.graph.collections import GraphKeys, add_to_collections
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.likes import Collections, IntsLike, TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import control_dependencies, name_scope
from thalweg.layers import convolutional, core, normalization, pooling
from thalweg.ops.core import basic
from thalweg.ops.nn import activation
from thalweg.public import public
from thalweg.variables.initializers import Zeros, xavier_initializer
from thalweg.variables.scope import variable_scope

if TYPE_CHECKING:
    from thalweg.variables.initializers import InitializerLike
    from thalweg.variables.scope import VariableScope
    from thalweg.variables.store import ReuseMode

Function = Callable[..., Any]
_OLD_NAMES = {"kernel": "weights", "bias": "biases"}


def _old_variables(getter: Function, name: str, *args: Any, **kwargs: Any) -> Any:
    """A variable getter that uses the old names and collects model variables."""
    scope, _, leaf = name.rpartition("/")
    path = f"{scope}/" if scope else ""
    given = kwargs.get("collections") or [GraphKeys.GLOBAL_VARIABLES]
    kwargs["collections"] = [*given, GraphKeys.MODEL_VARIABLES]
    return getter(f"{path}{_OLD_NAMES.get(leaf, leaf)}", *args, **kwargs)


def _old_scope(scope: Any, default_name: str, inputs: Any, reuse: Any) -> variable_scope:
    return variable_scope(scope, default_name, [inputs], reuse=reuse, custom_getter=_old_variables)


def _collect(variables: list[Any], collections: Any) -> None:
    """Add variables to collections: one list for all of them, or a list for each last name."""
    for variable in variables:
        leaf = variable.op.name.rpartition("/")[2]
        wanted = collections.get(leaf) if nest.is_mapping(collections) else collections
        if wanted:
            add_to_collections(nest.as_list(wanted), variable)


def _finished(
    outputs: Tensor,
    activation_fn: Function | None,
    outputs_collections: Any,
    normalizer_fn: Function | None = None,
    normalizer_params: dict[str, Any] | None = None,
) -> Tensor:
    """Normalize, activate and collect the outputs of a layer."""
    if normalizer_fn is not None:
        outputs = normalizer_fn(outputs, **(normalizer_params or {}))
    if activation_fn is not None:
        outputs = activation_fn(outputs)
    if outputs_collections:
        add_to_collections(nest.as_list(outputs_collections), outputs)
    return outputs


@public("contrib.layers.fully_connected")
def fully_connected(
    inputs: Any,
    num_outputs: int,
    activation_fn: Function | None = activation.relu,
    normalizer_fn: Function | None = None,
    normalizer_params: dict[str, Any] | None = None,
    weights_initializer: InitializerLike = xavier_initializer(),  # noqa: B008 - holds no state
    weights_regularizer: Function | None = None,
    biases_initializer: InitializerLike = Zeros(),  # noqa: B008 - holds no state
    biases_regularizer: Function | None = None,
    reuse: bool | ReuseMode | None = None,
    variables_collections: Collections | Mapping[str, Collections] = None,
    outputs_collections: Hashable = None,
    trainable: bool = True,
    scope: str | VariableScope | None = None,
) -> Tensor:
    """A dense layer; with a normalizer it has no biases.

    Args:
        inputs: [..., depth], the depth known.
        num_outputs: the size of the last axis of the result.
        activation_fn: a function of the result; None: none.
        normalizer_fn: a function such as `tf.contrib.layers.batch_norm`, applied before that.
        normalizer_params: a dict of arguments for it.
        weights_initializer, biases_initializer: how the variables begin; None for no biases.
        weights_regularizer, biases_regularizer: functions of the variables that give losses.
        reuse: whether the variables of the scope are shared.
        variables_collections, outputs_collections: collections to join.
        trainable: whether optimizers change the variables by default.
        scope: the variable scope; "fully_connected" if None.

    Returns:
        A tensor [..., num_outputs].

    Example:
        >>> x = tf.placeholder(tf.float32, [None, 4])
        >>> tf.contrib.layers.fully_connected(x, 3).shape.as_list()
        [None, 3]
    """
    with _old_scope(scope, "fully_connected", inputs, reuse) as opened:
        layer = core.Dense(
            num_outputs,
            use_bias=normalizer_fn is None and biases_initializer is not None,
            kernel_initializer=weights_initializer,
            bias_initializer=biases_initializer,
            kernel_regularizer=weights_regularizer,
            bias_regularizer=biases_regularizer,
            trainable=trainable,
            name=opened.name,
            _scope=opened,
            _reuse=reuse,
        )
        outputs = layer(convert_to_tensor(inputs))
        _collect(layer.variables, variables_collections)
        return _finished(
            outputs, activation_fn, outputs_collections, normalizer_fn, normalizer_params
        )


@public("contrib.layers.linear")
def linear(inputs: Any, num_outputs: int, **kwargs: Any) -> Tensor:
    """`tf.contrib.layers.fully_connected` without an activation.

    Args:
        inputs: [..., depth].
        num_outputs: the size of the last axis of the result.
        kwargs: what `fully_connected` takes besides.

    Returns:
        A tensor [..., num_outputs].

    Example:
        >>> tf.contrib.layers.linear(tf.zeros([2, 4]), 3).shape.as_list()
        [2, 3]
    """
    return fully_connected(inputs, num_outputs, activation_fn=None, **kwargs)


@public("contrib.layers.relu")
def relu(inputs: Any, num_outputs: int, **kwargs: Any) -> Tensor:
    """`fully_connected` with rectified outputs.

    Args:
        inputs: a tensor [..., n].
        num_outputs: the size of the last axis of the result.
        kwargs: as for `fully_connected`.

    Returns:
        A tensor.

    Example:
        >>> y = tf.contrib.layers.relu(tf.ones([2, 3]), 4)
        >>> sess.run(tf.global_variables_initializer())
        >>> sess.run(y).min() >= 0
        np.True_
    """
    return fully_connected(inputs, num_outputs, activation_fn=activation.relu, **kwargs)


def _layer_format(data_format: str | None) -> str:
    if data_format not in (None, "NHWC", "NCHW"):
        raise ValueError(f"data_format has to be either NCHW or NHWC, not {data_format!r}.")
    return "channels_first" if data_format == "NCHW" else "channels_last"


@public("contrib.layers.conv2d", "contrib.layers.convolution2d")
def conv2d(
    inputs: Any,
    num_outputs: int,
    kernel_size: IntsLike,
    stride: IntsLike = 1,
    padding: str = "SAME",
    data_format: str | None = None,
    rate: IntsLike = 1,
    activation_fn: Function | None = activation.relu,
    normalizer_fn: Function | None = None,
    normalizer_params: dict[str, Any] | None = None,
    weights_initializer: InitializerLike = xavier_initializer(),  # noqa: B008 - holds no state
    weights_regularizer: Function | None = None,
    biases_initializer: InitializerLike = Zeros(),  # noqa: B008 - holds no state
    biases_regularizer: Function | None = None,
    reuse: bool | ReuseMode | None = None,
    variables_collections: Collections | Mapping[str, Collections] = None,
    outputs_collections: Hashable = None,
    trainable: bool = True,
    scope: str | VariableScope | None = None,
) -> Tensor:
    """A convolution over images; with a normalizer it has no biases.

    Args:
        inputs: [batch, height, width, channels], or channels second as "NCHW".
        num_outputs: the number of channels of the result.
        kernel_size: the size of the window: a number or (height, width).
        stride: the distance between windows, likewise.
        padding: "SAME" or "VALID".
        data_format: "NHWC" or "NCHW".
        rate: the distance between the elements of a window.
        activation_fn: a function of the result; None: none.
        normalizer_fn, normalizer_params: a normalizer and a dict of its arguments.
        weights_initializer, biases_initializer: how the variables begin; None for no biases.
        weights_regularizer, biases_regularizer: functions of the variables that give losses.
        reuse: whether the variables of the scope are shared.
        variables_collections, outputs_collections: collections to join.
        trainable: whether optimizers change the variables by default.
        scope: the variable scope; "Conv" if None.

    Returns:
        A tensor [batch, rows, columns, num_outputs].

    Example:
        >>> x = tf.placeholder(tf.float32, [None, 8, 8, 3])
        >>> tf.contrib.layers.conv2d(x, 16, 3, stride=2).shape.as_list()
        [None, 4, 4, 16]
    """
    with _old_scope(scope, "Conv", inputs, reuse) as opened:
        layer = convolutional.Conv2D(
            num_outputs,
            kernel_size,
            stride,
            padding,
            _layer_format(data_format),
            rate,
            use_bias=normalizer_fn is None and biases_initializer is not None,
            kernel_initializer=weights_initializer,
            bias_initializer=biases_initializer,
            kernel_regularizer=weights_regularizer,
            bias_regularizer=biases_regularizer,
            trainable=trainable,
            name=opened.name,
            _scope=opened,
            _reuse=reuse,
        )
        outputs = layer(convert_to_tensor(inputs))
        _collect(layer.variables, variables_collections)
        return _finished(
            outputs, activation_fn, outputs_collections, normalizer_fn, normalizer_params
        )


@public("contrib.layers.max_pool2d")
def max_pool2d(
    inputs: TensorLike,
    kernel_size: IntsLike,
    stride: IntsLike = 2,
    padding: str = "VALID",
    data_format: str = "NHWC",
    outputs_collections: Hashable = None,
    scope: Any = None,
) -> Tensor:
    """The maximum of windows of images.

    Args:
        inputs: [batch, height, width, channels], or channels second as "NCHW".
        kernel_size: the size of the window: a number or (height, width).
        stride: the distance between windows, likewise.
        padding: "VALID" or "SAME".
        data_format: "NHWC" or "NCHW".
        outputs_collections: collections to join.
        scope: the name of the nodes' scope.

    Returns:
        A tensor of the same rank and dtype.

    Example:
        >>> x = tf.placeholder(tf.float32, [None, 8, 8, 3])
        >>> tf.contrib.layers.max_pool2d(x, 2).shape.as_list()
        [None, 4, 4, 3]
    """
    with name_scope(scope, "MaxPool2D", [inputs]):
        layer = pooling.MaxPooling2D(kernel_size, stride, padding, _layer_format(data_format))
        return _finished(layer(inputs), None, outputs_collections)


@public("contrib.layers.avg_pool2d")
def avg_pool2d(
    inputs: TensorLike,
    kernel_size: IntsLike,
    stride: IntsLike = 2,
    padding: str = "VALID",
    data_format: str = "NHWC",
    outputs_collections: Hashable = None,
    scope: Any = None,
) -> Tensor:
    """The mean of windows of images."""
    with name_scope(scope, "AvgPool2D", [inputs]):
        layer = pooling.AveragePooling2D(kernel_size, stride, padding, _layer_format(data_format))
        return _finished(layer(inputs), None, outputs_collections)


@public("contrib.layers.flatten")
def flatten(inputs: TensorLike, outputs_collections: Hashable = None, scope: Any = None) -> Tensor:
    """All axes but the first as one.

    Args:
        inputs: a tensor [batch, ...].
        outputs_collections: collections to join.
        scope: the name of the nodes' scope.

    Returns:
        A tensor [batch, size].

    Example:
        >>> x = tf.placeholder(tf.float32, [None, 4, 4, 3])
        >>> tf.contrib.layers.flatten(x).shape.as_list()
        [None, 48]
    """
    with name_scope(scope, "Flatten", [inputs]):
        return _finished(core.flatten(inputs), None, outputs_collections)


@public("contrib.layers.dropout")
def dropout(
    inputs: TensorLike,
    keep_prob: Tensor | float = 0.5,
    noise_shape: Any = None,
    is_training: TensorLike = True,
    outputs_collections: Hashable = None,
    scope: Any = None,
    seed: int | None = None,
) -> Tensor:
    """In training, keep a share `keep_prob` of the inputs and scale it up; set the rest to 0.

    Args:
        inputs: a floating tensor.
        keep_prob: the probability to keep an element.
        noise_shape: a shape that broadcasts to that of `inputs`; see `tf.nn.dropout`.
        is_training: a Python or tensor truth value.
        outputs_collections: collections to join.
        scope: the name of the nodes' scope.
        seed: a number that fixes the sequence of values.

    Returns:
        A tensor of the shape and dtype of `inputs`.

    Example:
        >>> sess.run(tf.contrib.layers.dropout(tf.ones([3]), 0.5, is_training=False))
        array([1., 1., 1.], dtype=float32)
    """
    with name_scope(scope, "Dropout", [inputs]):
        dropped = core.dropout(inputs, 1 - keep_prob, noise_shape, seed, is_training)
        return _finished(dropped, None, outputs_collections)


@public("contrib.layers.batch_norm")
def batch_norm(
    inputs: TensorLike,
    decay: float = 0.999,
    center: bool = True,
    scale: bool = False,
    epsilon: float = 0.001,
    activation_fn: Function | None = None,
    param_initializers: dict[str, Any] | None = None,
    param_regularizers: dict[str, Any] | None = None,
    updates_collections: Hashable = GraphKeys.UPDATE_OPS,
    is_training: TensorLike = True,
    reuse: bool | ReuseMode | None = None,
    variables_collections: Collections | Mapping[str, Collections] = None,
    outputs_collections: Hashable = None,
    trainable: bool = True,
    fused: bool | None = None,
    data_format: str = "NHWC",
    scope: str | VariableScope | None = None,
) -> Tensor:
    """Batch normalization: by the batch in training, by moving averages otherwise.

    Args:
        inputs: [batch, ..., channels], or channels second as "NCHW".
        decay: how much of the moving averages stays in a step.
        center, scale: whether an offset is added, a factor multiplied.
        epsilon: what is added to the variance.
        activation_fn: a function of the result.
        param_initializers, param_regularizers: dicts by the name of the variable.
        updates_collections: where the updates of the averages go, to run with the training step;
            None runs them within the layer.
        is_training: a Python or tensor truth value.
        reuse: whether the variables of the scope are shared.
        variables_collections, outputs_collections: collections to join.
        trainable: whether optimizers change the variables by default.
        fused: whether one op normalizes, which takes images by channel; None: where that fits.
        data_format: "NHWC" or "NCHW".
        scope: the variable scope; "BatchNorm" if None.

    Returns:
        A tensor of the shape and dtype of `inputs`.

    Example:
        >>> x = tf.placeholder(tf.float32, [None, 8, 8, 3])
        >>> y = tf.contrib.layers.batch_norm(x)
        >>> len(tf.get_collection(tf.GraphKeys.UPDATE_OPS))
        2
    """
    initial = {f"{name}_initializer": v for name, v in (param_initializers or {}).items()}
    regular = {f"{name}_regularizer": v for name, v in (param_regularizers or {}).items()}
    with _old_scope(scope, "BatchNorm", inputs, reuse) as opened:
        layer = normalization.BatchNormalization(
            axis=1 if data_format == "NCHW" else -1,
            momentum=decay,
            epsilon=epsilon,
            center=center,
            scale=scale,
            trainable=trainable,
            fused=fused,
            name=opened.name,
            _scope=opened,
            _reuse=reuse,
            **initial,
            **regular,
        )
        outputs = layer(inputs, training=is_training)
        _collect(layer.variables, variables_collections)
        if updates_collections is None and layer.updates:
            with control_dependencies(layer.updates):
                outputs = basic.identity(outputs)
        elif updates_collections not in (None, GraphKeys.UPDATE_OPS):
            for update in layer.updates:
                add_to_collections(nest.as_list(updates_collections), update)
        return _finished(outputs, activation_fn, outputs_collections)
