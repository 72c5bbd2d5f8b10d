"""Functions that take part in making variables: `tf.variable_creator_scope`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from thalweg.graph import context
from thalweg.public import public

#: (what makes the variable else, **its arguments) -> the variable
Creator = Callable[..., Any]

_creators: context.ThreadStack[Creator] = context.ThreadStack()


@public("variable_creator_scope")
def variable_creator_scope(variable_creator: Creator) -> AbstractContextManager[Any]:
    """Let a function make the variables that are made inside, by this thread.

    Args:
        variable_creator: a function of (next creator, **arguments of `tf.Variable`), which returns
            a variable; it may change the arguments, and call the next creator or not.

    Returns:
        A context manager; of nested ones, the innermost is called first.

    Example:
        >>> def frozen(next_creator, **kwargs):
        ...     return next_creator(**(kwargs | {"trainable": False}))
        >>> with tf.variable_creator_scope(frozen):
        ...     w = tf.Variable(1.0)
        >>> tf.trainable_variables()
        []
    """
    return _creators.pushed(variable_creator)


class MadeByCreators(type):
    """The class of `Variable`: a call goes through the creators whose scopes are open."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """A variable."""
        make: Callable[..., Any] = super().__call__
        creators = _creators.items
        if not creators:
            return make(*args, **kwargs)
        given = inspect.signature(cls.__init__).bind(None, *args, **kwargs)
        given.apply_defaults()
        named = dict(list(given.arguments.items())[1:])
        if named.get("variable_def") is not None:
            return make(*args, **kwargs)
        for creator in creators:
            make = functools.partial(creator, make)
        return make(**named)
