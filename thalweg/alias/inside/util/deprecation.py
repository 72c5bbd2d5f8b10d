"""`tensorflow.python.util.deprecation`: decorators that warn of old functions and arguments."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from thalweg.alias.inside.util.tf_decorator import make_decorator
from thalweg.platform import tf_logging

_warned: set[Any] = set()
_silent = False


class DeprecatedArgSpec(NamedTuple):
    """Where an old argument stands, and the value that is still right."""

    position: int
    has_ok_value: bool
    ok_value: Any


class DeprecatedNamesAlreadySet(Exception):
    """A symbol has a list of old names already."""


@contextlib.contextmanager
def silence() -> Generator[None]:
    """No warnings inside."""
    global _silent
    before, _silent = _silent, True
    try:
        yield
    finally:
        _silent = before


def deprecated(date: str | None, instructions: str, warn_once: bool = True) -> Any:
    """Warn when a function or class is used, and say so in its docstring."""

    def decorate(function: Any) -> Any:
        def warn() -> None:
            when = "in a future version" if date is None else f"after {date}"
            _warn(
                function,
                warn_once,
                f"{_name(function)} (from {function.__module__}) is deprecated and will be removed "
                f"{when}.\nInstructions for updating:\n{instructions}",
            )

        note = f"(deprecated)\n\n{instructions}"
        if inspect.isclass(function):
            return _warning_class(function, warn)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            warn()
            return function(*args, **kwargs)

        result = make_decorator(function, wrapper, "deprecated", note)
        result.__doc__ = f"{function.__doc__ or ''} {note}".strip()
        return result

    return decorate


def _warning_class(kind: Any, warn: Callable[[], None]) -> Any:
    original = kind.__init__

    @functools.wraps(original)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        warn()
        original(self, *args, **kwargs)

    kind.__init__ = initialise
    return kind


def deprecated_args(
    date: str | None, instructions: str, *deprecated_arg_names_or_tuples: Any, **options: Any
) -> Any:
    """Warn when arguments are given that have no use any more.

    An entry is a name, or a name and the value that may still be passed.
    """
    entries = [(e,) if isinstance(e, str) else tuple(e) for e in deprecated_arg_names_or_tuples]

    def is_used(entry: tuple[Any, ...], arguments: dict[str, Any]) -> bool:
        if entry[0] not in arguments:
            return False
        value = arguments[entry[0]]
        return not (len(entry) > 1 and (value is entry[1] or _equal(value, entry[1])))

    def used(arguments: dict[str, Any]) -> list[str]:
        return [entry[0] for entry in entries if is_used(entry, arguments)]

    return _warning_of_arguments(date, instructions, used, options.get("warn_once", True))


def deprecated_arg_values(
    date: str | None, instructions: str, warn_once: bool = True, **deprecated_kwargs: Any
) -> Any:
    """Warn when an argument has a value that is not right any more."""

    def used(arguments: dict[str, Any]) -> list[str]:
        return [
            f"{name}={value!r}"
            for name, value in deprecated_kwargs.items()
            if name in arguments and _equal(arguments[name], value)
        ]

    return _warning_of_arguments(date, instructions, used, warn_once)


def _warning_of_arguments(
    date: str | None, instructions: str, used: Callable[[dict[str, Any]], list[str]], once: bool
) -> Any:
    def decorate(function: Any) -> Any:
        parameters = inspect.signature(function)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(TypeError):  # the call itself says what is wrong with it
                names = used(dict(parameters.bind(*args, **kwargs).arguments))
                if names and not _silent:
                    when = "in a future version" if date is None else f"after {date}"
                    text = (
                        f"calling {_name(function)} (from {function.__module__}) with "
                        f"{', '.join(names)} "
                        f"is deprecated and will be removed {when}.\nInstructions for updating:\n"
                    )
                    _warn((function, *names), once, text + instructions)
            return function(*args, **kwargs)

        return make_decorator(function, wrapper, "deprecated")

    return decorate


def deprecated_argument_lookup(new_name: str, new_value: Any, old_name: str, old_value: Any) -> Any:
    """The value of an argument that has two names, of which one may be given."""
    if old_value is None:
        return new_value
    if new_value is not None:
        raise ValueError(f"Cannot specify both '{old_name}' and '{new_name}'")
    return old_value


def deprecated_alias(
    deprecated_name: str, name: str, func_or_class: Any, warn_once: bool = True
) -> Any:
    """A function under its old name, with a warning."""
    return deprecated(None, f"Please use {name} instead of {deprecated_name}.", warn_once)(
        func_or_class
    )


def deprecated_endpoints(*args: str) -> Any:
    """Note the old names of a function."""

    def decorate(function: Any) -> Any:
        if hasattr(function, "_tf_deprecated_api_names"):
            raise DeprecatedNamesAlreadySet(f"{_name(function)} has old names already.")
        function._tf_deprecated_api_names = args
        return function

    return decorate


def rewrite_argument_docstring(old_doc: str, old_argument: str, new_argument: str) -> str:
    """A docstring with another name for an argument."""
    return old_doc.replace(f"`{old_argument}`", f"`{new_argument}`").replace(
        f"{old_argument}:", f"{new_argument}:"
    )


def _warn(key: Any, once: bool, text: str) -> None:
    if _silent or (once and key in _warned):
        return
    _warned.add(key)
    tf_logging.warning("From %s", text)


def _equal(value: Any, other: Any) -> bool:
    """Whether two arguments are the same; what compares element by element is not."""
    try:
        return bool(value == other)
    except Exception:  # whatever a user's type raises when it is compared, or asked for its truth
        return False


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", repr(function))


class HiddenTfApiAttribute(property):
    """An attribute that a subclass does not have any more."""

    def __init__(self, deprecation_message: str) -> None:
        def refuse(_: Any) -> None:
            raise AttributeError(deprecation_message)

        super().__init__(refuse)


hide_attribute_from_api = HiddenTfApiAttribute
HIDDEN_ATTRIBUTE = HiddenTfApiAttribute("This attribute has been deprecated.")
