"""Variable creators: `tf.variable_creator_scope`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from thalweg.graph import context
from thalweg.public import public

#: (the next creator, **arguments) -> the variable
Creator = Callable[..., Any]

_creators: context.ThreadStack[Creator] = context.ThreadStack()


@public("variable_creator_scope")
def variable_creator_scope(variable_creator: Creator) -> AbstractContextManager[Any]:
    """Create variables by a function, in this thread inside the block.

    Args:
        variable_creator: a function of (next creator, **arguments of `tf.Variable`), which returns
            a variable; it may change the arguments, and need not call the next creator.

    Returns:
        A context manager; of nested ones, the innermost function is called first.

    Example:
        >>> def frozen(next_creator, **kwargs):
        ...     return next_creator(**(kwargs | {"trainable": False}))
        >>> with tf.variable_creator_scope(frozen):
        ...     w = tf.Variable(1.0)
        >>> tf.trainable_variables()
        []
    """
    return _creators.pushed(variable_creator)


class VariableMeta(type):
    """The metaclass of `Variable`: a call goes through the open creator scopes."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Create a variable."""
        create: Callable[..., Any] = super().__call__
        creators = _creators.items
        if not creators:
            return create(*args, **kwargs)
        bound = inspect.signature(cls.__init__).bind(None, *args, **kwargs)
        bound.apply_defaults()
        named = dict(list(bound.arguments.items())[1:])
        if named.get("variable_def") is not None:
            return create(*args, **kwargs)
        for creator in creators:
            create = functools.partial(creator, create)
        return create(**named)
