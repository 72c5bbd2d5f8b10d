"""`tensorflow.python.util.tf_decorator`: decorators that know what they decorate."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class TFDecorator:
    """A decorated function: what was decorated, by what, and the signature it pretends to have."""

    def __init__(
        self,
        decorator_name: str,
        target: Any,
        decorator_doc: str = "",
        decorator_argspec: Any = None,
    ) -> None:
        self.decorator_name, self._target = decorator_name, target
        self.decorator_doc, self.decorator_argspec = decorator_doc, decorator_argspec
        functools.update_wrapper(self, target, updated=())

    @property
    def decorated_target(self) -> Any:
        """The function inside."""
        return self._target

    def __get__(self, instance: Any, owner: Any) -> Any:
        return self._target.__get__(instance, owner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._target(*args, **kwargs)


def make_decorator(
    target: Any,
    decorator_func: Any,
    decorator_name: str | None = None,
    decorator_doc: str = "",
    decorator_argspec: Any = None,
) -> Any:
    """Make a function look like the one it wraps, and `unwrap` find that."""
    name = decorator_name or getattr(decorator_func, "__name__", "decorator")
    decorator = TFDecorator(name, target, decorator_doc, decorator_argspec)
    decorator_func._tf_decorator = decorator
    for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
        if hasattr(target, attribute):
            setattr(decorator_func, attribute, getattr(target, attribute))
    decorator_func.__wrapped__ = target
    return decorator_func


def unwrap(maybe_tf_decorator: Any) -> tuple[list[TFDecorator], Any]:
    """The decorators around a function, outermost first, and the function."""
    found: list[TFDecorator] = []
    current = maybe_tf_decorator
    while True:
        decorator = current if isinstance(current, TFDecorator) else _decorator_of(current)
        if decorator is None:
            return found, current
        found.append(decorator)
        current = decorator.decorated_target


def _decorator_of(function: Any) -> TFDecorator | None:
    decorator = getattr(function, "_tf_decorator", None)
    return decorator if isinstance(decorator, TFDecorator) else None


def should_use_result(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself: nothing watches what becomes of its result."""
    return function
