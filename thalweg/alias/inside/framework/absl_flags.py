"""`tf.flags` and `tf.app` of a program under the alias, where absl is installed: they are absl's.

So flags defined by `tf.flags` and by `absl.flags` are the same flags, and a command line with a
flag that nobody defined is refused. Values may be read before `tf.app.run`, as programs of old do.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

absl_flags: Any = importlib.import_module("absl.flags")
absl_app: Any = importlib.import_module("absl.app")

_KEYWORDS = {"flag_name": "name", "default_value": "default", "docstring": "help"}


class FlagValues:
    """absl's flags, which parse the command line when a value is first asked for."""

    def __getattr__(self, name: str) -> Any:
        if not absl_flags.FLAGS.is_parsed():
            absl_flags.FLAGS(sys.argv)
        return getattr(absl_flags.FLAGS, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(absl_flags.FLAGS, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(absl_flags.FLAGS, name)

    def __dir__(self) -> list[str]:
        return dir(absl_flags.FLAGS)

    def __getitem__(self, name: str) -> Any:
        return absl_flags.FLAGS[name]

    def __contains__(self, name: str) -> bool:
        return name in absl_flags.FLAGS

    def __iter__(self) -> Any:
        return iter(absl_flags.FLAGS)

    def __len__(self) -> int:
        return len(absl_flags.FLAGS)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Parse a command line."""
        return absl_flags.FLAGS(*args, **kwargs)

    def _parse_flags(self, args: Any = None) -> Any:
        """Parse a command line, as programs of the first releases did."""
        return absl_flags.FLAGS([sys.argv[0], *(sys.argv[1:] if args is None else args)])


def with_old_keywords(define: Callable[..., Any]) -> Callable[..., Any]:
    """A `DEFINE_*` that also takes the keywords of the first releases."""

    @functools.wraps(define)
    def defined(*args: Any, **kwargs: Any) -> Any:
        return define(*args, **{_KEYWORDS.get(name, name): v for name, v in kwargs.items()})

    return defined


def run(main: Any = None, argv: Any = None) -> None:
    """Parse the flags and run the program."""
    absl_app.run(main or sys.modules["__main__"].main, argv)


def modules() -> dict[str, ModuleType]:
    """The modules `flags` and `app` for `tensorflow`."""
    flags = ModuleType("tensorflow.flags", "absl's flags.")
    for name in dir(absl_flags):
        value = getattr(absl_flags, name)
        setattr(flags, name, with_old_keywords(value) if name.startswith("DEFINE_") else value)
    vars(flags)["FLAGS"] = FlagValues()
    app = ModuleType("tensorflow.app", "absl's app.")
    vars(app).update(run=run, flags=flags)
    return {"flags": flags, "app": app}
