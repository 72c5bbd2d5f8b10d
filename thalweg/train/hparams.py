"""`tf.contrib.training.HParams`: named hyperparameters, each of one type, set from text."""

from __future__ import annotations

import json
import numbers
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from thalweg.graph import nest
from thalweg.public import public

_ASSIGNMENT = re.compile(
    r"""
    (?P<name>[a-zA-Z][\w.]*)            # a name
    (\[\s*(?P<index>\d+)\s*\])?\s*=\s*   # perhaps an index
    ((?P<value>[^,\[]*) | \[(?P<values>[^\]]*)\])
    ($|,\s*)
    """,
    re.VERBOSE,
)


@public("contrib.training.parse_values")
def parse_values(
    values: str, type_map: Mapping[str, type], ignore_unknown: bool = False
) -> dict[str, Any]:
    """The assignments in a text such as `rate=0.1,sizes=[3,4],units[1]=7`.

    Args:
        values: the text.
        type_map: the type of each name.
        ignore_unknown: whether names without a type are passed over.

    Returns:
        Name -> value; an assignment to an index gives a dict {index: value}.

    Raises:
        ValueError: for what cannot be parsed, has no type or is assigned twice.

    Example:
        >>> tf.contrib.training.parse_values("rate=0.1,sizes=[3,4]", {"rate": float, "sizes": int})
        {'rate': 0.1, 'sizes': [3, 4]}
    """
    result: dict[str, Any] = {}
    position = 0
    while position < len(values):
        match = _ASSIGNMENT.match(values, position)
        if match is None:
            raise ValueError(f"Malformed hyperparameter value: {values[position:]}")
        position = match.end()
        name = match["name"].strip()
        if name in type_map:
            _assign(result, match, _parser(type_map[name], name, values), values)
        elif not ignore_unknown:
            raise ValueError(f"Unknown hyperparameter type for {name}")
    return result


def _assign(
    found: dict[str, Any], match: re.Match[str], parse: Callable[[str], Any], text: str
) -> None:
    name, index = match["name"].strip(), match["index"]
    if match["values"] is not None:
        if index is not None:
            raise ValueError("Assignment of a list to a list index.")
        value: Any = [parse(part) for part in re.split("[ ,]", match["values"]) if part]
    else:
        value = parse(match["value"])
    known = found.get(name)
    if index is None and name not in found:
        found[name] = value
    elif index is not None and (known is None or isinstance(known, dict)):
        entries: dict[int, Any] = found.setdefault(name, {})
        if int(index) in entries:
            raise ValueError(f"Multiple assignments to variable '{name}' in {text}")
        entries[int(index)] = value
    else:
        raise ValueError(f"Multiple assignments to variable '{name}' in {text}")


def _parser(kind: type, name: str, text: str) -> Callable[[str], Any]:
    def parse(value: str) -> Any:
        try:
            return _boolean(value) if kind is bool else kind(value)
        except ValueError as error:
            raise ValueError(
                f"Could not parse hparam '{name}' of type '{kind.__name__}' with value '{value}' "
                f"in {text}"
            ) from error

    return parse


def _boolean(text: str) -> bool:
    if text in ("true", "True"):
        return True
    return False if text in ("false", "False") else bool(int(text))


def _cast(name: str, kind: type, value: Any) -> Any:
    """A value as one of a parameter's type; ValueError where something would be lost."""
    trouble = ValueError(f"Could not cast hparam '{name}' of type '{kind}' from value {value!r}")
    if kind is type(None) or value is None:
        return value
    is_text = isinstance(value, str | bytes)
    if issubclass(kind, str | bytes) != is_text or issubclass(kind, bool) != isinstance(
        value, bool
    ):
        raise trouble
    if issubclass(kind, numbers.Integral) and not isinstance(value, numbers.Integral):
        raise trouble
    if issubclass(kind, numbers.Number) and not isinstance(value, numbers.Number):
        raise trouble
    return cast("Any", kind)(value)


@public("contrib.training.HParams")
class HParams:
    """Hyperparameters as attributes; each keeps the type of its first value.

    Args:
        hparam_def: not here: there is no HParamDef message.
        model_structure: anything, kept for the program.
        kwargs: the parameters.

    Example:
        >>> hparams = tf.contrib.training.HParams(rate=0.1, sizes=[8, 8])
        >>> hparams.parse("rate=0.5,sizes[1]=16").values()
        {'rate': 0.5, 'sizes': [8, 16]}
    """

    _HAS_DYNAMIC_ATTRIBUTES = True

    def __init__(
        self, hparam_def: object = None, model_structure: object = None, **kwargs: Any
    ) -> None:
        if hparam_def is not None:
            raise ValueError("Thalweg has no HParamDef message: give the parameters by name.")
        self._hparam_types: dict[str, tuple[type, bool]] = {}
        self._model_structure = model_structure
        for name, value in kwargs.items():
            self.add_hparam(name, value)

    def add_hparam(self, name: str, value: object) -> None:
        """Add a parameter; the type of the value is the parameter's."""
        if getattr(self, name, None) is not None:
            raise ValueError(f"Hyperparameter name is reserved: {name}")
        if isinstance(value, list | tuple):
            items = cast("list[Any]", value)
            if not items:
                raise ValueError(f"Multi-valued hyperparameters cannot be empty: {name}")
            self._hparam_types[name] = type(items[0]), True
        else:
            self._hparam_types[name] = type(value), False
        setattr(self, name, value)

    def set_hparam(self, name: str, value: object) -> None:
        """Give a parameter another value of its type."""
        kind, is_list = self._hparam_types[name]
        if isinstance(value, list):
            if not is_list:
                raise ValueError(f"Must not pass a list for single-valued parameter: {name}")
            items = cast("list[Any]", value)
            setattr(self, name, [_cast(name, kind, item) for item in items])
            return
        if is_list:
            raise ValueError(f"Must pass a list for multi-valued parameter: {name}.")
        setattr(self, name, _cast(name, kind, value))

    def del_hparam(self, name: str) -> None:
        """Remove a parameter if it is there."""
        if hasattr(self, name):
            delattr(self, name)
            del self._hparam_types[name]

    def parse(self, values: str) -> HParams:
        """Set parameters from a text of assignments."""
        kinds = {name: kind for name, (kind, _) in self._hparam_types.items()}
        return self.override_from_dict(parse_values(values, kinds))

    def override_from_dict(self, values_dict: Mapping[str, Any]) -> HParams:
        """Set parameters from a dict; a dict {index: value} sets elements."""
        for name, value in values_dict.items():
            if self._hparam_types[name][1] and isinstance(value, dict):
                self.set_hparam(name, self._with_elements(name, cast("dict[int, Any]", value)))
            else:
                self.set_hparam(name, value)
        return self

    set_from_map = override_from_dict

    def _with_elements(self, name: str, elements: Mapping[int, Any]) -> list[Any]:
        """The list that a parameter is, with other elements at some indices."""
        whole = list(getattr(self, name))
        for index, item in elements.items():
            whole[index] = item
        return whole

    def set_model_structure(self, model_structure: object) -> None:
        """Keep something for the program."""
        self._model_structure = model_structure

    def get_model_structure(self) -> Any:
        """What `set_model_structure` kept."""
        return self._model_structure

    def to_json(
        self,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """The parameters as JSON; functions are left out."""
        shown = {name: value for name, value in self.values().items() if not callable(value)}
        return json.dumps(shown, indent=indent, separators=separators, sort_keys=sort_keys)

    def parse_json(self, values_json: str) -> HParams:
        """Set parameters from JSON."""
        return self.override_from_dict(json.loads(values_json))

    def values(self) -> dict[str, Any]:
        """Name -> value."""
        return {name: getattr(self, name) for name in self._hparam_types}

    def get(self, key: str, default: object = None) -> Any:
        """The value of a parameter, or the default, which must be of its type."""
        if key not in self._hparam_types:
            return default
        if default is not None:
            kind, is_list = self._hparam_types[key]
            if is_list != isinstance(default, list):
                raise ValueError(f"Default of '{key}' is {'not ' if is_list else ''}a list.")
            for item in nest.as_list(default):
                _cast(key, kind, item)
        return getattr(self, key)

    def __contains__(self, key: object) -> bool:
        return key in self._hparam_types

    def __str__(self) -> str:
        return str(sorted(self.values().items()))

    def __repr__(self) -> str:
        return f"HParams({self})"
