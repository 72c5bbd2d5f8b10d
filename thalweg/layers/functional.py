"""How the function form of a layer is made from its class.

`tf.layers.dense(inputs, units, ..., reuse=None)` takes the inputs, what `Dense` takes, and
whether variables are shared; its signature is read from the class, so the two cannot differ.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Final

from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.nn.layer import Layer
from thalweg.platform.docstrings import composed
from thalweg.public import public
from thalweg.suggestions import name_keyword

_PARTS: Final = ("kernel", "bias", "depthwise", "pointwise")

#: What the parameters of layers mean, for the docstrings of classes and functions alike.
_MEANINGS: Final = {
    "inputs": "the tensor to apply the layer to, batch first.",
    "units": "the size of the last dimension of the result.",
    "filters": "the number of channels of the result.",
    "kernel_size": "the size of the window: a number, or one per spatial dimension.",
    "pool_size": "the size of the window: a number, or one per spatial dimension.",
    "strides": "the distance between windows: a number, or one per spatial dimension.",
    "padding": "'valid': only whole windows; 'same': as many as there are strides, zeros around.",
    "data_format": "'channels_last' or 'channels_first', right after the batch.",
    "dilation_rate": "the distance between the elements of a window.",
    "depth_multiplier": "the number of channels that each input channel is convolved to.",
    "activation": "a function of the result, such as `tf.nn.relu`; None: none.",
    "use_bias": "whether a bias is added.",
    **{f"{part}_initializer": f"the initializer of the {part}." for part in _PARTS},
    **{
        f"{part}_regularizer": f"a function of the {part} whose result is a loss."
        for part in _PARTS
    },
    **{f"{part}_constraint": f"a function that optimizers apply to the {part}." for part in _PARTS},
    "activity_regularizer": "a function of the result that gives a loss.",
    "trainable": "whether optimizers change the variables by default.",
    "name": "the name of the layer, and the scope of its variables.",
    "reuse": "whether variables of that name are shared: True, False or `tf.AUTO_REUSE`.",
    "kwargs": "what every layer takes: `dtype` and so on.",
}


def functional(layer: type[Layer], *names: str, reuses: bool = True) -> Callable[..., Any]:
    """Publish a function that makes a layer and applies it at once."""
    signature = _signature(layer, reuses)

    def function(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            name_keyword(error, function)
            raise
        inputs, reuse = given.pop("inputs"), given.pop("reuse", None)
        return layer(**given, _reuse=reuse, _scope=given.get("name"))(inputs)

    function.__name__ = function.__qualname__ = names[0].rpartition(".")[2]
    own = list(inspect.signature(layer.__init__).parameters)[1:]
    returns = "The result of the layer, a tensor of the dtype of `inputs`."
    function.__doc__ = composed(layer.__doc__, _meanings(signature.parameters), returns)
    layer.__doc__ = composed(layer.__doc__, _meanings(own))
    function.__module__ = layer.__module__
    function.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess] - what inspect reads
    return public(*names)(function)


def _meanings(names: Iterable[str]) -> dict[str, str]:
    return {name: _MEANINGS[name] for name in names}


def _signature(layer: type[Layer], reuses: bool) -> inspect.Signature:
    """(inputs, what the class takes but for its keyword leftovers, reuse)"""
    own = list(inspect.signature(layer.__init__).parameters.values())[1:]
    named = [p for p in own if p.kind is not inspect.Parameter.VAR_KEYWORD]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    inputs = inspect.Parameter("inputs", kind, annotation=TensorLike)
    sharing = inspect.Parameter("reuse", kind, default=None, annotation=bool | None)
    return inspect.Signature([inputs, *named, *[sharing] * reuses], return_annotation=Tensor)
