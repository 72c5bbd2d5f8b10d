"""Docstrings of public functions that factories generate from op blocks.

A block's docstring has a summary, optional paragraphs and an `Example:`; the factory adds the
sections on the function's arguments and result.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])
_WIDTH: Final = 96
_EXAMPLE: Final = "\n\nExample:\n"
NAME: Final = "the name of the node; by default that of the op."


def composed(docstring: str | None, arguments: Mapping[str, str], returns: str = "") -> str:
    """A docstring with sections on arguments and result before its `Example:`."""
    summary, _, example = inspect.cleandoc(docstring or "").partition(_EXAMPLE)
    lines = [_wrapped(f"{name}: {meaning}", 8) for name, meaning in arguments.items()]
    sections = [summary, "Args:\n" + "\n".join(lines)]
    if returns:
        sections.append(f"Returns:\n{_wrapped(returns, 4)}")
    if example:
        sections.append(f"Example:\n{example}")
    return "\n\n".join(sections)


class Described(Protocol):
    """A decorator that completes docstrings, given what differs from the rest of the family."""

    def __call__(self, returns: str = ..., **own: str) -> Callable[[_Function], _Function]: ...


def family(shared: Mapping[str, str], returned: str) -> Described:
    """A decorator of functions that share parameters: each describes only its own.

    A function's docstring has a summary, optional paragraphs and an `Example:`; sections on its
    arguments, in order, and on its result are added.
    """

    def described(returns: str = returned, **own: str) -> Callable[[_Function], _Function]:
        def describe(function: _Function) -> _Function:
            code = function.__code__
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            meanings = {**shared, **own}
            function.__doc__ = composed(
                function.__doc__, {name: meanings[name] for name in names}, returns
            )
            return function

        return describe

    return described


def _wrapped(text: str, indent: int) -> str:
    """A paragraph, wrapped. `textwrap` takes nine times as long, and an import of the package does
    this for hundreds of functions."""
    lines: list[str] = []
    line = "   "
    for word in text.split():
        if len(line) + 1 + len(word) > _WIDTH and line.strip():
            lines.append(line)
            line = " " * (indent - 1)
        line += f" {word}"
    return "\n".join([*lines, line])
