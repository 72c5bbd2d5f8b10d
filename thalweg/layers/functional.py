"""How the function form of a layer is made from its class.

`tf.layers.dense(inputs, units, ..., reuse=None)` takes the inputs, what `Dense` takes, and
whether variables are shared; its signature is read from the class, so the two cannot differ.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.nn.layer import Layer
from thalweg.public import public
from thalweg.suggestions import name_keyword


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
    function.__doc__ = layer.__doc__
    function.__module__ = layer.__module__
    function.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess] - what inspect reads
    return public(*names)(function)


def _signature(layer: type[Layer], reuses: bool) -> inspect.Signature:
    """(inputs, what the class takes but for its keyword leftovers, reuse)"""
    own = list(inspect.signature(layer.__init__).parameters.values())[1:]
    named = [p for p in own if p.kind is not inspect.Parameter.VAR_KEYWORD]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    inputs = inspect.Parameter("inputs", kind, annotation=TensorLike)
    sharing = inspect.Parameter("reuse", kind, default=None, annotation=bool | None)
    return inspect.Signature([inputs, *named, *[sharing] * reuses], return_annotation=Tensor)
