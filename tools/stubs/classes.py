"""Classes as stub source: bases, fields, attributes, properties and methods."""

from __future__ import annotations

import ast
import enum
import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import numpy as np

from tools.stubs import annotations, sources
from tools.stubs.annotations import ANY, TENSOR
from tools.stubs.module_text import ModuleText, quoted
from tools.stubs.signatures import Signatures, doc_of

_LEFT_OUT = {
    "__class_getitem__", "__copy__", "__deepcopy__", "__delattr__", "__div__", "__getnewargs__",
    "__getstate__", "__init_subclass__", "__nonzero__", "__rdiv__", "__reduce__",
    "__reduce_ex__", "__repr__", "__setattr__", "__setstate__", "__str__", "__subclasshook__",
    "__del__", "__replace__", "__match_args__", "__abstractmethods__",
}  # fmt: skip
_INDENT = "    "


class Classes:
    """Writes classes."""

    def __init__(self, signatures: Signatures, is_public: Callable[[type], bool]) -> None:
        self._signatures = signatures
        self._is_public = is_public

    def written(self, module: ModuleText, name: str, kind: type) -> str:
        """A class as a stub."""
        bases = ", ".join(module.local(base) for base in _bases(kind))
        head = f"class {name}({bases}):" if bases else f"class {name}:"
        doc = quoted(doc_of(kind), _INDENT)
        return "\n".join(part for part in (head, doc, *self._body(module, kind), "    ...") if part)

    def _body(self, module: ModuleText, kind: type) -> Iterator[str]:
        if issubclass(kind, enum.Enum):
            yield from (f"{_INDENT}{member.name} = {member.value!r}" for member in kind)
        members = dict(self.members(kind))
        fields = {} if issubclass(kind, enum.Enum) else self._fields(kind)
        for name, text in fields.items():
            if name not in members:
                yield f"{_INDENT}{name}: {module.local(text)}{_field_default(kind, name)}"
        for name, value in members.items():
            yield self._member(module, kind, name, value)

    def members(self, kind: type) -> Iterator[tuple[str, Any]]:
        """What a class defines for its users, and what eager code adds to it."""
        own = {name: value for name, value in vars(kind).items() if _is_shown(kind, name, value)}
        for eager in _descendants(kind):
            if self.shown_as(eager) is kind:
                own |= {name: value for name, value in vars(eager).items() if _is_of_arrays(name)}
        yield from own.items()

    def shown_as(self, value: object) -> object:
        """The public class that users take an eager tensor or variable for; others as they are."""
        if not isinstance(value, type) or not _is_of_eager_code(value):
            return value
        library = itertools.takewhile(lambda base: not _is_of_eager_code(base), value.__mro__[1:])
        shown = next((base for base in library if self._is_public(base)), None)
        return value if shown is None or self._is_public(value) else shown

    def _member(self, module: ModuleText, kind: type, name: str, value: Any) -> str:
        if isinstance(value, staticmethod | classmethod):
            marker = type(value).__name__
            text = self._function(module, kind, name, value.__func__)
            return text.replace(f"{_INDENT}def", f"{_INDENT}@{marker}\n{_INDENT}def")
        if isinstance(value, property | functools.cached_property):
            return self._property(module, kind, name, value)
        if isinstance(value, type):
            return f"{_INDENT}{name} = {module.local(annotations.text(value, kind.__module__))}"
        return self._function(module, kind, name, value)

    def _function(self, module: ModuleText, kind: type, name: str, value: Any) -> str:
        return self._signatures.written(module, name, value, _INDENT, kind)

    def _property(self, module: ModuleText, kind: type, name: str, value: Any) -> str:
        getter = value.fget if isinstance(value, property) else value.func
        result = module.local(self._signatures.result(getter, kind))
        doc = quoted(doc_of(getter), _INDENT * 2)
        end = f":\n{doc}\n{_INDENT * 2}..." if doc else ": ..."
        lines = [f"{_INDENT}@property\n{_INDENT}def {name}(self) -> {result}{end}"]
        if isinstance(value, property) and value.fset is not None:
            taken = list(self._signatures.parameter_types(value.fset, kind).values())[-1]
            head = f"{_INDENT}@{name}.setter\n{_INDENT}def {name}"
            lines.append(f"{head}(self, value: {module.local(taken)}) -> None: ...")
        return "\n".join(lines)

    def _fields(self, kind: type) -> dict[str, str]:
        """Attributes: of named tuples, declared ones, constants, and what methods set."""
        if hasattr(kind, "_fields") and not inspect.get_annotations(kind):
            return dict.fromkeys(kind._fields, TENSOR if _is_of_op(kind) else ANY)
        declared = {
            name: annotations.text(text, kind.__module__)
            for name, text in inspect.get_annotations(kind).items()
            if not name.startswith("_")
        }
        constants = {
            name: annotations.text(type(value), kind.__module__)
            for name, value in vars(kind).items()
            if not name.startswith("_")
            and isinstance(value, str | int | float | bytes | np.generic)
        }
        return self._attributes(kind) | constants | declared

    def _attributes(self, kind: type) -> dict[str, str]:
        """What methods set on self."""
        found: dict[str, str] = {}
        for method in vars(kind).values():
            definition = sources.definition_of(method) if isinstance(method, FunctionType) else None
            if definition is None:
                continue
            types = self._signatures.parameter_types(method, kind)
            for node in ast.walk(definition):
                for name, text in _set_on_self(node, types, kind.__module__):
                    found.setdefault(name, text)
        return {name: text for name, text in found.items() if not name.startswith("_")}


def _set_on_self(node: ast.AST, types: dict[str, str], module: str) -> Iterator[tuple[str, str]]:
    match node:
        case ast.Assign([ast.Attribute(ast.Name("self"), name)], value):
            yield name, _of_expression(value, types, module)
        case ast.AnnAssign(ast.Attribute(ast.Name("self"), name), annotation):
            yield name, annotations.text(ast.unparse(annotation), module)


def _of_expression(value: ast.expr, types: dict[str, str], module: str) -> str:
    match value:
        case ast.Name(name):
            return types.get(name, ANY)
        case ast.Constant(bool() | int() | float() | str() | bytes() as constant):
            return type(constant).__name__
    return ANY


def _bases(kind: type) -> list[str]:
    if hasattr(kind, "_fields") and tuple in kind.__bases__:
        return ["typing.NamedTuple"]
    written = [str(base) for base in vars(kind).get("__orig_bases__", ())]
    if written:
        return [annotations.text(text.replace("~", ""), kind.__module__) for text in written]
    return [
        annotations.text(base, kind.__module__) for base in kind.__bases__ if base is not object
    ]


def _is_of_op(kind: type) -> bool:
    return not inspect.get_annotations(kind)


def _field_default(kind: type, name: str) -> str:
    defaults = getattr(kind, "_field_defaults", {})
    return " = ..." if name in defaults else ""


def _is_shown(kind: type, name: str, value: object) -> bool:
    if name in _LEFT_OUT or (name.startswith("_") and not name.startswith("__")):
        return False
    if name == "__new__" and ("__init__" in vars(kind) or hasattr(kind, "_fields")):
        return False
    if issubclass(kind, enum.Enum) and name.startswith("_"):
        return False
    if hasattr(kind, "_fields") and (name in kind._fields or name.startswith("__")):
        return False
    if isinstance(value, FunctionType) and not _is_ours(name, value):
        return False
    return isinstance(
        value, FunctionType | staticmethod | classmethod | property | functools.cached_property
    ) or (isinstance(value, type) and value.__module__.startswith("thalweg."))


def _is_ours(name: str, value: FunctionType) -> bool:
    """Whether the library wrote a method, or a decorator of its classes did for users to call."""
    is_generated = value.__code__.co_filename == "<string>"
    return name == "__init__" if is_generated else value.__module__.startswith("thalweg.")


def _is_of_eager_code(kind: type) -> bool:
    return kind.__module__.startswith("thalweg.functions")


def _descendants(kind: type) -> Iterator[type]:
    for each in kind.__subclasses__():
        yield each
        yield from _descendants(each)


def _is_of_arrays(name: str) -> bool:
    """What users do with an eager tensor, which is an array to them."""
    special = name.startswith("__") and not name.startswith("__array")
    is_operator = special and name[2:-2] in ("bool", "iter", "len", "int", "float", "index")
    return is_operator or name in ("numpy", "ndim", "item", "cpu", "gpu")
