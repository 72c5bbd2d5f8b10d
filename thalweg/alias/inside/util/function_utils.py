"""`tensorflow.python.util.function_utils`: what a function takes."""

from __future__ import annotations

import functools
import inspect
from typing import Any, cast

from thalweg.alias.inside.util.tf_decorator import unwrap


def fn_args(fn: Any) -> tuple[str, ...]:
    """The names of the parameters that a caller may still give, without `self`."""
    if isinstance(fn, functools.partial):
        partial = cast("functools.partial[Any]", fn)
        names = fn_args(partial.func)[len(partial.args) :]
        return tuple(name for name in names if name not in partial.keywords)
    function = unwrap(fn)[1]
    is_bound = inspect.ismethod(function)
    if not inspect.isroutine(function) and callable(function):
        function, is_bound = type(function).__call__, True
    names = inspect.getfullargspec(function).args
    return tuple(names[is_bound:])


def has_kwargs(fn: Any) -> bool:
    """Whether a function takes any keyword."""
    if isinstance(fn, functools.partial):
        fn = fn.func
    if not inspect.isroutine(fn) and callable(fn) and not inspect.isclass(fn):
        fn = type(fn).__call__
    if not callable(fn):
        raise TypeError(f"fn should be a function-like object, but is of type {type(fn)}.")
    return inspect.getfullargspec(unwrap(fn)[1]).varkw is not None


def get_func_name(func: Any) -> str:
    """The name of a function, for messages."""
    function = unwrap(func)[1]
    if isinstance(function, functools.partial):
        return get_func_name(function.func)
    return getattr(function, "__qualname__", None) or type(function).__name__


def get_func_code(func: Any) -> Any:
    """The code object of a function, None where there is none."""
    function = unwrap(func)[1]
    if isinstance(function, functools.partial):
        return get_func_code(function.func)
    return getattr(function, "__code__", None)
