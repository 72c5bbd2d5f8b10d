"""`make_template`: a function whose first call creates variables that all later calls share."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable
from typing import Any

from thalweg.platform import tf_logging
from thalweg.public import public
from thalweg.variables.collections import global_variables, trainable_variables
from thalweg.variables.scope import VariableScope, variable_scope


@public("make_template")
def make_template(
    name_: str,
    func_: Callable[..., Any],
    create_scope_now_: bool = False,
    unique_name_: str | None = None,
    custom_getter_: Callable[..., Any] | None = None,
    **kwargs: Any,
) -> Template:
    """A function whose calls after the first reuse the variables of the first.

    Args:
        name_: the name of its variable scope.
        func_: the function.
        create_scope_now_: whether to create the scope now, not at the first call.
        unique_name_: the exact name of the scope.
        custom_getter_: a getter for its variables.
        kwargs: arguments to bind.

    Returns:
        A function of the other arguments of `func_`.

    Example:
        >>> def scale(x):
        ...     return x * tf.get_variable("factor", [], initializer=tf.constant_initializer(2.0))
        >>> shared = tf.make_template("scale", scale)
        >>> a, b = shared(1.0), shared(2.0)
        >>> len(tf.global_variables())
        1
    """
    if kwargs:
        func_ = functools.partial(func_, **kwargs)
    return Template(name_, func_, create_scope_now_, unique_name_, custom_getter_)


class Template:
    """A function with the variable scope its calls share."""

    def __init__(
        self,
        name: str,
        func: Callable[..., Any],
        create_scope_now: bool = False,
        unique_name: str | None = None,
        custom_getter: Callable[..., Any] | None = None,
    ) -> None:
        if name is None:  # pyright: ignore[reportUnnecessaryComparison] - user input
            raise ValueError("name cannot be None.")
        self._function = func
        self._name = name
        self._unique_name = unique_name
        self._custom_getter = custom_getter
        self._origin = _stack()[:-2]
        self._scope: VariableScope | None = None
        self._was_called = False
        if create_scope_now:  # without a name scope: each call opens its own
            with self._new_scope(auxiliary_name_scope=False) as self._scope:
                pass

    @property
    def name(self) -> str:
        """The name of the template."""
        return self._name

    @property
    def func(self) -> Callable[..., Any]:
        """The wrapped function."""
        return self._function

    @property
    def variable_scope(self) -> VariableScope | None:
        """The variable scope; None until the first call (or `create_scope_now`)."""
        return self._scope

    @property
    def variable_scope_name(self) -> str | None:
        """The name of the scope, without a trailing slash."""
        return None if self._scope is None else self._scope.name.rstrip("/")

    var_scope = variable_scope

    @property
    def trainable_variables(self) -> list[Any]:
        """The trainable variables of the template."""
        return [] if self._scope is None else self._scope.trainable_variables()

    @property
    def global_variables(self) -> list[Any]:
        """The global variables of the template."""
        return [] if self._scope is None else self._scope.global_variables()

    variables = global_variables

    def _new_scope(self, auxiliary_name_scope: bool = True) -> variable_scope:
        return variable_scope(
            self._unique_name,
            self._name,
            custom_getter=self._custom_getter,
            auxiliary_name_scope=auxiliary_name_scope,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        first, self._was_called = not self._was_called, True
        if self._scope is None:
            with self._new_scope() as self._scope:
                return self._call(args, kwargs, first)
        with variable_scope(self._scope, reuse=None if first else True):
            return self._call(args, kwargs, first)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any], first: bool) -> Any:
        trainable, all_before = len(trainable_variables()), len(global_variables())
        try:
            result = self._function(*args, **kwargs)
            if not first:
                _check_no_new(trainable, all_before)
        except Exception as error:
            message = error.args[0] if error.args else ""
            origin = "".join(_without_common(self._origin, _stack()))
            error.args = (f"{message}\n\noriginally defined at:\n{origin}", *error.args[1:])
            raise
        return result


def _stack() -> list[traceback.FrameSummary]:
    """The stack of the caller, outermost frame first; source lines are read when it is printed."""
    frames = traceback.walk_stack(sys._getframe(1))  # pyright: ignore[reportPrivateUsage] - builds no traceback
    return traceback.StackSummary.extract(frames, lookup_lines=False)[::-1]


def _without_common(
    stack: list[traceback.FrameSummary], other: list[traceback.FrameSummary]
) -> list[str]:
    """The frames of a stack as text, without the outer frames that another stack shares."""
    lines = [[(frame.filename, frame.lineno) for frame in frames] for frames in (stack, other)]
    pairs = zip(*lines, strict=False)
    common = next((n for n, (ours, theirs) in enumerate(pairs) if ours != theirs), len(stack) - 1)
    return traceback.format_list(stack[common:])


def _check_no_new(trainable: int, all_before: int) -> None:
    hint = "perhaps you used tf.Variable when you meant tf.get_variable"
    new = trainable_variables()[trainable:]
    if new:
        raise ValueError(
            "Trainable variable created when calling a template after the first time, "
            f"{hint}: {[variable.name for variable in new]}"
        )
    others = global_variables()[all_before:]
    if others:
        tf_logging.info(
            "New variables created when calling a template after the first time, %s: %s",
            hint,
            [variable.name for variable in others],
        )
