"""`tf.contrib.framework`: creation of variables by kind, and lookup by scope, suffix or name."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from thalweg.graph.collections import GraphKeys
from thalweg.graph.graph import get_default_graph
from thalweg.graph.likes import DeviceLike, TensorLike
from thalweg.public import public
from thalweg.variables.scope import VariableScope, get_variable
from thalweg.variables.variable import Variable


def _names(*functions: str) -> tuple[str, ...]:
    return tuple(f"contrib.{part}.{name}" for name in functions for part in ("framework", "slim"))


@public(*_names("variable"))
def variable(name: str, shape: Any = None, device: DeviceLike = None, **options: Any) -> Any:
    """A variable as `get_variable` gives it, on a device if one is named.

    Args:
        name: the name.
        shape: the shape.
        device: the device; None: as the open scopes say.
        options: as for `tf.get_variable`.

    Returns:
        A variable.

    Example:
        >>> tf.contrib.slim.variable("v", [2], device="/cpu:0").device
        '/device:CPU:0'
    """
    keys = options.pop("collections", None)
    collections = [GraphKeys.GLOBAL_VARIABLES] if keys is None else keys
    with get_default_graph().device(device or ""):
        return get_variable(name, shape, collections=list(dict.fromkeys(collections)), **options)


@public(*_names("model_variable"))
def model_variable(name: str, shape: Any = None, **options: Any) -> Any:
    """A variable that inference needs.

    Args:
        name: the name.
        shape: the shape.
        options: as for `tf.get_variable`.

    Returns:
        A variable in the collection of model variables too.

    Example:
        >>> v = tf.contrib.slim.model_variable("v", [2])
        >>> v in tf.get_collection(tf.GraphKeys.MODEL_VARIABLES)
        True
    """
    keys = list(options.pop("collections", None) or ())
    keys += [GraphKeys.GLOBAL_VARIABLES, GraphKeys.MODEL_VARIABLES]
    return variable(name, shape, collections=keys, **options)


@public(*_names("local_variable"))
def local_variable(
    initial_value: TensorLike | Callable[[], TensorLike],
    validate_shape: bool = True,
    name: str | None = None,
) -> Variable:
    """A variable that is local to this process.

    Args:
        initial_value: its initial value: a tensor, or a function that returns one.
        validate_shape: whether it always has the shape of that value.
        name: the name.

    Returns:
        A variable in the collection of local variables, not of global ones.

    Example:
        >>> v = tf.contrib.framework.local_variable(0, name="seen")
        >>> v in tf.local_variables(), v in tf.global_variables()
        (True, False)
    """
    return Variable(
        initial_value,
        trainable=False,
        collections=[GraphKeys.LOCAL_VARIABLES],
        validate_shape=validate_shape,
        name=name,
    )


@public(*_names("add_model_variable"))
def add_model_variable(var: Variable) -> None:
    """Declare that inference needs a variable."""
    collected = get_default_graph().get_collection_ref(GraphKeys.MODEL_VARIABLES)
    if var not in collected:
        collected.append(var)


@public(*_names("get_variables"))
def get_variables(
    scope: str | VariableScope | None = None,
    suffix: str | None = None,
    collection: Hashable = GraphKeys.GLOBAL_VARIABLES,
) -> list[Any]:
    """The variables of a collection in a scope, whose names end with `suffix`.

    Args:
        scope: a name or VariableScope; None: everywhere.
        suffix: the end of the names.
        collection: the collection; by default all variables.

    Returns:
        A list of variables.

    Example:
        >>> weights = tf.get_variable("layer/weights", [2])
        >>> [v.name for v in tf.contrib.slim.get_variables("layer", suffix="weights")]
        ['layer/weights:0']
    """
    prefix = scope.name if isinstance(scope, VariableScope) else scope
    if suffix is not None:
        ending = suffix if ":" in suffix else f"{suffix}:"
        prefix = f"{prefix or ''}.*{ending}"
    return get_default_graph().get_collection(collection, prefix)


@public(*_names("get_model_variables"))
def get_model_variables(scope: Any = None, suffix: str | None = None) -> list[Any]:
    """The variables that inference needs: the collection `MODEL_VARIABLES`.

    Args:
        scope: a scope, or a regular expression that names match from the start.
        suffix: the end of the names.

    Returns:
        A list of variables.

    Example:
        >>> x = tf.contrib.layers.fully_connected(tf.zeros([1, 2]), 3, scope="out")
        >>> [v.op.name for v in tf.contrib.framework.get_model_variables()]
        ['out/weights', 'out/biases']
    """
    return get_variables(scope, suffix, GraphKeys.MODEL_VARIABLES)


@public(*_names("get_local_variables"))
def get_local_variables(scope: Any = None, suffix: str | None = None) -> list[Any]:
    """The variables that are local to this process."""
    return get_variables(scope, suffix, GraphKeys.LOCAL_VARIABLES)


@public(*_names("get_trainable_variables"))
def get_trainable_variables(scope: Any = None, suffix: str | None = None) -> list[Any]:
    """The variables that optimizers update by default."""
    return get_variables(scope, suffix, GraphKeys.TRAINABLE_VARIABLES)


@public(*_names("get_variables_by_suffix"))
def get_variables_by_suffix(suffix: str, scope: Any = None) -> list[Any]:
    """The variables whose names end with `suffix`."""
    return get_variables(scope, suffix)


@public(*_names("get_variables_by_name"))
def get_variables_by_name(given_name: str, scope: Any = None) -> list[Any]:
    """The variables of this name, in any scope inside `scope`.

    Args:
        given_name: the last part of the names.
        scope: a name or VariableScope; None: everywhere.

    Returns:
        A list of variables.

    Example:
        >>> v = [tf.get_variable(name, [1]) for name in ("conv/w", "conv/b", "dense/w")]
        >>> [x.op.name for x in tf.contrib.framework.get_variables_by_name("w")]
        ['conv/w', 'dense/w']
    """
    pattern = re.compile(rf"(^|/){re.escape(given_name)}$")
    return [v for v in get_variables(scope) if pattern.search(v.op.name)]


@public(*_names("get_unique_variable"))
def get_unique_variable(var_op_name: str) -> Variable:
    """The global variable with exactly this name."""
    for candidate in get_default_graph().get_collection(GraphKeys.GLOBAL_VARIABLES):
        if candidate.op.name == var_op_name:
            return candidate
    raise ValueError(f"Variable {var_op_name} does not exist: no global variable has this name.")


@public(*_names("get_variables_to_restore"))
def get_variables_to_restore(
    include: Sequence[str] | None = None, exclude: Sequence[str] | None = None
) -> list[Any]:
    """The global variables in some scopes, less those in others.

    Args:
        include: scopes or names; None means all.
        exclude: scopes or names to leave out.

    Returns:
        A list of variables.

    Example:
        >>> v, w = tf.Variable(1.0, name="body/v"), tf.Variable(1.0, name="head/w")
        >>> tf.contrib.framework.get_variables_to_restore(exclude=["head"]) == [v]
        True
    """
    scopes = [None] if include is None else list(include)
    included = dict.fromkeys(v for scope in scopes for v in get_variables(scope))
    for scope in exclude or ():
        for excluded in get_variables(scope):
            included.pop(excluded, None)
    return list(included)


@public(*_names("filter_variables"))
def filter_variables(
    var_list: Sequence[Any],
    include_patterns: Sequence[str] | None = None,
    exclude_patterns: Sequence[str] | None = None,
    reg_search: bool = True,
) -> list[Any]:
    """The variables whose names match any pattern to include and none to exclude.

    Args:
        var_list: the variables.
        include_patterns: regular expressions; None: all variables.
        exclude_patterns: regular expressions.
        reg_search: whether a pattern may match anywhere in a name, or at its start only.

    Returns:
        A list of variables.

    Example:
        >>> v = [tf.get_variable(name, [1]) for name in ("conv/w", "conv/b", "dense/w")]
        >>> [x.op.name for x in tf.contrib.framework.filter_variables(v, ["conv"], ["b$"])]
        ['conv/w']
    """
    match = re.search if reg_search else re.match

    def matches(name: str, patterns: Sequence[str]) -> bool:
        return any(match(pattern, name) for pattern in patterns)

    return [
        v
        for v in var_list
        if (include_patterns is None or matches(v.op.name, include_patterns))
        and not matches(v.op.name, exclude_patterns or ())
    ]
