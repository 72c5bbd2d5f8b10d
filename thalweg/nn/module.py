"""`tf.Module`: an object that owns variables and other modules, under a name of its own."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

from thalweg.graph import nest
from thalweg.graph.scopes import name_scope
from thalweg.public import public
from thalweg.variables.variable import Variable


@public("Module")
class Module:
    """A base class for parts of models: it finds the variables and modules among its attributes.

    Args:
        name: a valid Python name; by default the class's, in snake case.

    Example:
        >>> class Scale(tf.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.factor = tf.Variable(2.0, name="factor")
        >>> [v.op.name for v in Scale().trainable_variables], Scale().name
        (['factor'], 'scale')
    """

    def __init__(self, name: str | None = None) -> None:
        chosen = _snake_case(type(self).__name__) if name is None else name
        if not chosen.isidentifier():
            raise ValueError(f"{chosen!r} is not a valid module name.")
        self._name = chosen
        with name_scope(chosen) as scope:
            self._scope_name = scope

    @property
    def name(self) -> str:
        """The name."""
        return self._name

    @property
    def name_scope(self) -> Any:
        """The name scope of this module, to be entered."""
        return name_scope(self._scope_name)

    @property
    def variables(self) -> tuple[Variable, ...]:
        """All variables of this module and those in it."""
        return tuple(_unique(self._flatten(lambda value: isinstance(value, Variable))))

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        """Those that optimizers change."""
        return tuple(v for v in self.variables if v.trainable)

    @property
    def submodules(self) -> tuple[Module, ...]:
        """All modules in this one."""
        found = self._flatten(lambda value: isinstance(value, Module))
        return tuple(module for module in _unique(found) if module is not self)

    def _flatten(
        self, wanted: Callable[[Any], bool], seen: set[int] | None = None
    ) -> Iterator[Any]:
        """Attributes that are wanted, in the order of their names, those of inner modules after."""
        seen = set() if seen is None else seen
        seen.add(id(self))
        inner: list[Module] = []
        for _, attribute in sorted(vars(self).items()):
            for value in nest.flatten(attribute):
                if wanted(value):
                    yield value
                if isinstance(value, Module) and id(value) not in seen:
                    inner.append(value)
        for module in inner:
            if id(module) not in seen:
                yield from module._flatten(wanted, seen)

    @classmethod
    def with_name_scope(cls, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method whose ops are in the name scope of its module."""

        @functools.wraps(method)
        def scoped(self: Module, *args: Any, **kwargs: Any) -> Any:
            with self.name_scope:
                return method(self, *args, **kwargs)

        return scoped


def _unique(values: Iterator[Any]) -> list[Any]:
    return list({id(value): value for value in values}.values())


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
