"""Docstrings of functions that are made, not written: the words of a block, sections added.

A block's docstring has a summary, perhaps paragraphs, and an `Example:`; the factory that makes the
public function knows its parameters and what it returns, and puts the whole together.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])
_WIDTH: Final = 96
_EXAMPLE: Final = "\n\nExample:\n"
NAME: Final = "the name of the node; by default that of the op."


def composed(about: str | None, arguments: Mapping[str, str], returns: str = "") -> str:
    """A docstring from a block's own, the meaning of each argument, and what is returned."""
    words, _, example = inspect.cleandoc(about or "").partition(_EXAMPLE)
    lines = [_wrapped(f"{name}: {meaning}", 8) for name, meaning in arguments.items()]
    sections = [words, "Args:\n" + "\n".join(lines)]
    if returns:
        sections.append(f"Returns:\n{_wrapped(returns, 4)}")
    if example:
        sections.append(f"Example:\n{example}")
    return "\n\n".join(sections)


class Described(Protocol):
    """A decorator that completes docstrings, given what is not as in the rest of the family."""

    def __call__(self, returns: str = ..., **own: str) -> Callable[[_Function], _Function]: ...


def family(shared: Mapping[str, str], returned: str) -> Described:
    """The decorator of functions that share parameters: each describes only what is its own.

    A function's docstring has a summary, perhaps paragraphs and an `Example:`; its arguments, in
    the order in which it takes them, and what it returns are added.
    """

    def described(returns: str = returned, **own: str) -> Callable[[_Function], _Function]:
        def describe(function: _Function) -> _Function:
            code = function.__code__
            taken = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            meanings = {**shared, **own}
            function.__doc__ = composed(
                function.__doc__, {name: meanings[name] for name in taken}, returns
            )
            return function

        return describe

    return described


def _wrapped(text: str, indent: int) -> str:
    """A paragraph in lines; `textwrap` takes ten times as long, and this
    is done for hundreds of functions when the package is imported."""
    lines, line = [], "   "
    for word in text.split():
        if len(line) + 1 + len(word) > _WIDTH and line.strip():
            lines.append(line)
            line = " " * (indent - 1)
        line += f" {word}"
    return "\n".join([*lines, line])
