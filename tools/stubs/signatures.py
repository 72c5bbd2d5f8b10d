"""Functions as stub source: parameters with types and defaults, result, docstring."""

from __future__ import annotations

import contextlib
import enum
import functools
import inspect
import typing
from types import FunctionType
from typing import Any

from thalweg.graph.dtypes import DType
from tools.stubs import annotations
from tools.stubs.annotations import ANY
from tools.stubs.calls import Place
from tools.stubs.flow import SLICES, SPARSE, Flow
from tools.stubs.module_text import ModuleText, quoted

_HELPER = contextlib.contextmanager(lambda: iter(())).__code__


class Signatures:
    """Writes functions, with the types that `Flow` finds."""

    def __init__(self) -> None:
        self._flow = Flow()

    def written(
        self, module: ModuleText, name: str, value: Any, indent: str = "", owner: type | None = None
    ) -> str:
        """A function as a stub: one `def`, or several where its result follows its argument."""
        declared = typing.get_overloads(value)
        if declared and value not in declared:
            doc = quoted(doc_of(value), f"{indent}    ")
            return "\n".join(
                self._overload(module, name, one, indent, owner, doc) for one in declared
            )
        signature = inspect.signature(value)
        place = Place(_plain(value), owner)
        types = {p.name: self._parameter(place, value, p) for p in signature.parameters.values()}
        result = self._result(place, value, signature)
        doc = quoted(doc_of(value), f"{indent}    ")
        variants = _variants(types, result)
        marker = f"{indent}@{module.local('typing.overload')}\n" if len(variants) > 1 else ""
        return "\n".join(
            marker + _definition(module, name, signature, types, result, indent, doc)
            for types, result in variants
        )

    def _overload(
        self, module: ModuleText, name: str, value: Any, indent: str, owner: type | None, doc: str
    ) -> str:
        """One of several signatures that the source declares, with the docstring of them all."""
        marker = f"{indent}@{module.local('typing.overload')}\n"
        types = self.parameter_types(value, owner)
        signature, result = inspect.signature(value), self.result(value, owner)
        return marker + _definition(module, name, signature, types, result, indent, doc)

    def _parameter(self, place: Place, value: Any, parameter: inspect.Parameter) -> str:
        if "__signature__" in vars(value) and isinstance(parameter.annotation, str):
            return annotations.text(parameter.annotation, value.__module__)
        return self._flow.parameter(place, parameter)

    def result(self, value: Any, owner: type | None = None) -> str:
        """The type of what a function returns."""
        return self._result(Place(_plain(value), owner), value, inspect.signature(value))

    def parameter_types(self, value: Any, owner: type | None = None) -> dict[str, str]:
        """The types of a function's parameters."""
        place, found = Place(_plain(value), owner), inspect.signature(value).parameters
        return {name: self._parameter(place, value, p) for name, p in found.items()}

    def _result(self, place: Place, value: Any, signature: inspect.Signature) -> str:
        result = self._flow.returned(place, signature.return_annotation)
        if getattr(value, "__code__", None) is _HELPER:
            inner = result.partition("[")[2].removesuffix("]").partition(",")[0]
            return f"contextlib.AbstractContextManager[{inner}]"
        return result


def _plain(value: Any) -> FunctionType:
    """The function below decorators."""
    value = value.func if isinstance(value, functools.partial) else value
    return inspect.unwrap(value)


def _variants(types: dict[str, str], result: str) -> list[tuple[dict[str, str], str]]:
    """A function that returns a SparseTensor where it gets one: the cases one by one."""
    results = annotations.members(result, "builtins")
    special = [part for part in results if part in (SPARSE, SLICES)]
    if not special or len(results) == 1:
        return [(types, result)]
    consumers = [
        name
        for name, text in types.items()
        if {*special} & {*annotations.members(text, "builtins")}
    ]
    if len(consumers) != 1 or len(results) != len(special) + 1:
        return [(types, ANY)]
    name = consumers[0]
    dense = " | ".join(part for part in types[name].split(" | ") if part not in special)
    other = next(part for part in results if part not in special)
    return [*((types | {name: part}, part) for part in special), (types | {name: dense}, other)]


def _definition(
    module: ModuleText,
    name: str,
    signature: inspect.Signature,
    types: dict[str, str],
    result: str,
    indent: str,
    doc: str,
) -> str:
    listed = ", ".join(_parameters(module, signature, types))
    head = f"{indent}def {name}({listed}) -> {module.local(result)}:"
    return f"{head}\n{doc}\n{indent}    ..." if doc else f"{head} ..."


def _parameters(
    module: ModuleText, signature: inspect.Signature, types: dict[str, str]
) -> list[str]:
    found: list[str] = []
    parameters = list(signature.parameters.values())
    for before, parameter in zip([None, *parameters], parameters, strict=False):
        if _was_positional(before) and not _was_positional(parameter):
            found.append("/")
        if parameter.kind is parameter.KEYWORD_ONLY and _opens_keywords(before):
            found.append("*")
        found.append(_parameter(module, parameter, types[parameter.name]))
    return [*found, "/"] if parameters and _was_positional(parameters[-1]) else found


def _was_positional(parameter: inspect.Parameter | None) -> bool:
    return parameter is not None and parameter.kind is parameter.POSITIONAL_ONLY


def _opens_keywords(before: inspect.Parameter | None) -> bool:
    return before is None or before.kind not in (before.KEYWORD_ONLY, before.VAR_POSITIONAL)


def _parameter(module: ModuleText, parameter: inspect.Parameter, text: str) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    if parameter.name in ("self", "cls"):
        return parameter.name
    written = f"{stars}{parameter.name}: {module.local(text)}"
    if parameter.default is parameter.empty:
        return written
    return f"{written} = {default(module, parameter.default)}"


def default(module: ModuleText, value: Any) -> str:
    """A default value, where it can be written down; `...` where not."""
    if value is None or isinstance(value, bool | int | float | str | bytes | enum.Enum):
        return _constant(module, value)
    if isinstance(value, DType):
        return module.local(f"thalweg.{value.name}")
    if type(value) is tuple:
        inner = ", ".join(default(module, part) for part in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return "..."


def _constant(module: ModuleText, value: Any) -> str:
    if isinstance(value, enum.Enum):
        kind = type(value)
        return module.local(f"{kind.__module__}.{kind.__qualname__}") + f".{value.name}"
    if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
        return "..."
    return repr(value)


def doc_of(value: Any) -> str:
    """The docstring that a definition has itself."""
    own = value.__dict__.get("__doc__") if isinstance(value, type) else value.__doc__
    return inspect.cleandoc(own or "")
