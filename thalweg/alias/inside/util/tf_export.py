"""`tensorflow.python.util.tf_export`: marks what a library publishes, and no more."""

from __future__ import annotations

import functools
from typing import Any


class api_export:  # noqa: N801 - TensorFlow's spelling
    """A decorator that notes under which names an object is public, in `_tf_api_names`."""

    def __init__(self, *names: str, **options: Any) -> None:
        self.names = names
        self.api_name: str = options.get("api_name", "tensorflow")

    def __call__(self, func: Any) -> Any:
        """Note the names on a function or class."""
        attribute = f"_{'tf' if self.api_name == 'tensorflow' else self.api_name}_api_names"
        try:
            setattr(func, attribute, self.names)
        except AttributeError:
            return func  # an object that takes no attributes is public all the same
        return func

    def export_constant(self, module_name: str, name: str) -> None:
        """Nothing to note: a constant cannot carry names."""


tf_export = functools.partial(api_export, api_name="tensorflow")
estimator_export = functools.partial(api_export, api_name="estimator")
keras_export = functools.partial(api_export, api_name="keras")


def kwarg_only(f: Any) -> Any:
    """Refuse arguments by position."""

    @functools.wraps(f)
    def wrapper(**kwargs: Any) -> Any:
        return f(**kwargs)

    return wrapper


def get_canonical_name_for_symbol(symbol: Any, *_: Any, **__: Any) -> str | None:
    """The first name that an object was exported under."""
    exported: Any = getattr(symbol, "_tf_api_names", None)
    return exported[0] if exported else None
