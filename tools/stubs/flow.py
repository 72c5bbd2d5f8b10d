"""What a parameter without a type may be, by what the function does with it.

A parameter that is declared as `Any` has the type of what it flows into: the inputs of op blocks,
the annotated parameters of the functions that it is passed to, the classes it is compared with. A
use that tells nothing (it is called, indexed, iterated) leaves it `Any`: better no type than a
wrong one.
"""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, NamedTuple

from thalweg.graph.node import Tensor
from tools.stubs import annotations, sources
from tools.stubs.annotations import ANY, CONVERTED, TENSOR, TENSOR_LIKE, union
from tools.stubs.calls import Place, bound, callee, methods, op_called, op_input, op_output
from tools.stubs.uses import arguments, assignments, attribute_uses, returns, uses

SPARSE = "thalweg.graph.composite.SparseTensor"
SLICES = "thalweg.graph.composite.IndexedSlices"

CALLABLE = "collections.abc.Callable[..., typing.Any]"

#: What functions take that are not ours.
_FOREIGN = dict.fromkeys(
    ("np.array", "np.asarray", "np.atleast_1d", "np.ndim", "np.shape", "np.size"),
    "numpy.typing.ArrayLike",
) | {
    "float": "typing.SupportsFloat",
    "int": "typing.SupportsInt",
    "list": f"collections.abc.Iterable[{ANY}]",
}

#: Built-in functions that take anything and say nothing about it.
_NEUTRAL = {"repr", "str", "id", "hasattr", "bool", "type", "cast"}


@dataclass
class Evidence:
    """What the uses of a value tell."""

    types: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)  # what it is compared with, among others
    is_returned: bool = False
    is_unknown: bool = False
    attributes: set[str] = field(default_factory=set)

    def settle(self) -> Evidence:
        """Attributes that a tensor has, or a class it is compared with, tell nothing; others do."""
        kinds = [sources.found(text) for text in self.options if text.startswith("thalweg.graph.")]
        known = {name for kind in [Tensor, *kinds] for name in _attributes(kind)}
        self.is_unknown |= not self.attributes <= known
        return self

    def follow(self, more: Evidence) -> None:
        """The value goes on under another name: what is done with that counts too."""
        self.types += more.types
        self.options += more.options
        self.is_returned |= more.is_returned
        self.is_unknown |= more.is_unknown

    def add(self, text: str) -> None:
        """A declared type that the value flows into: more can be passed where it is converted."""
        if text == ANY:
            self.is_unknown = True
        for part in annotations.members(text, "builtins"):
            self.types += [CONVERTED.get(part, part)]


class Argument(NamedTuple):
    """A value that a call passes on: to a parameter of a function."""

    target: Place
    name: str
    call: ast.Call


class Flow:
    """The types of parameters and results, worked out once each."""

    def __init__(self) -> None:
        self._parameters: dict[tuple[FunctionType, str], Evidence] = {}
        self._attributes: dict[tuple[type, str], Evidence] = {}
        self._returns: dict[FunctionType, str] = {}

    def parameter(self, place: Place, parameter: inspect.Parameter) -> str:
        """The type of a parameter: as declared, else by its uses; with None if that is given."""
        declared = annotations.text(parameter.annotation, place.module)
        if declared != ANY or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            return declared
        found = self._evidence(place, parameter.name)
        if found.is_unknown or not found.types:
            return ANY
        if parameter.default is None:
            return union(*found.types, *found.options, "None")
        return union(*found.types, *found.options)

    def _evidence(self, place: Place, name: str) -> Evidence:
        key = (place.function, name)
        if key not in self._parameters:
            self._parameters[key] = Evidence()  # a cycle tells nothing more
            if place.definition is None:
                return Evidence(is_unknown=True)
            self._parameters[key] = self._uses(place, name)
        return self._parameters[key]

    def _uses(self, place: Place, name: str, after: int = 0) -> Evidence:
        evidence = Evidence()
        for use, parents in uses(place.definition, name, after):
            self._classify(place, use, parents, evidence)
        return evidence.settle()

    def _kept(self, owner: type, name: str) -> Evidence:
        """As `_uses`, of an attribute that a method sets: in all methods that instances have."""
        key = (owner, name)
        if key not in self._attributes:
            self._attributes[key] = Evidence()
            evidence = Evidence()
            for method in methods(owner):
                place = Place(method, owner)
                for use, parents in attribute_uses(place.definition, name):
                    self._classify(place, use, parents, evidence)
            self._attributes[key] = evidence.settle()
        return self._attributes[key]

    def _classify(
        self, place: Place, use: ast.AST, parents: list[ast.AST], evidence: Evidence
    ) -> None:
        """Add what one use of a value tells. `parents` leads from the function to the use."""
        parent, above = parents[-1], parents[:-1]
        match parent:
            case ast.Call():
                self._in_call(place, parent, use, above, evidence)
            case ast.keyword():
                self._passed(place, above[-1], parent, above[:-1], evidence)
            case ast.List() | ast.Tuple():
                _gathered(above, evidence)
            case ast.Attribute(attr=name):
                evidence.attributes.add(name)
            case ast.Return():
                evidence.is_returned = True
            case ast.Assign([target]):
                self._assigned(place, parent, target, evidence)
            case _:
                self._in_expression(place, use, parents, evidence)

    def _in_call(
        self,
        place: Place,
        call: ast.Call,
        use: ast.AST,
        above: list[ast.AST],
        evidence: Evidence,
    ) -> None:
        match call:
            case ast.Call(ast.Name("isinstance"), [first, kinds]) if first is use:
                _compared(place, kinds, evidence)
            case ast.Call(ast.Name("callable")):
                evidence.options.append(CALLABLE)
            case ast.Call(function) if function is use:
                evidence.options.append(CALLABLE)
            case ast.Call(ast.Name(name)) if name in _NEUTRAL:
                pass
            case _:
                self._passed(place, call, use, above, evidence)

    def _assigned(
        self, place: Place, statement: ast.Assign, target: ast.expr, evidence: Evidence
    ) -> None:
        match target:
            case ast.Name(name):
                evidence.follow(self._uses(place, name, statement.end_lineno or 0))
            case ast.Attribute(ast.Name("self"), name) if place.owner:
                evidence.follow(self._kept(place.owner, name))
            case _:
                evidence.is_unknown = True

    def _in_expression(
        self, place: Place, use: ast.AST, parents: list[ast.AST], evidence: Evidence
    ) -> None:
        parent = parents[-1]
        match parent:
            case ast.Compare(_, [ast.Is() | ast.IsNot()], [ast.Constant(None)]):
                evidence.options.append("None")
            case ast.IfExp(test) if test is not use:
                self._classify(place, parent, parents[:-1], evidence)
            case ast.BoolOp() | ast.NamedExpr():
                self._classify(place, parent, parents[:-1], evidence)
            case _:
                evidence.is_unknown |= not isinstance(parent, _SILENT)

    def _passed(
        self, place: Place, call: ast.AST, use: ast.AST, above: list[ast.AST], evidence: Evidence
    ) -> None:
        """An argument of a call has the type of the parameter that it is bound to."""
        if not isinstance(call, ast.Call):
            evidence.is_unknown = True
            return
        op = op_called(place, call)
        if op is not None:
            evidence.add(op_input(op, call, use))
            return
        known = _FOREIGN.get(ast.unparse(call.func))
        if known is not None:
            evidence.types.append(known)
            return
        target = callee(place, call)
        parameter = None if target is None else bound(target.function, call, use)
        if target is None or parameter is None:
            evidence.is_unknown = True
            return
        declared = annotations.text(parameter.annotation, target.module)
        if declared == ANY:
            self._passed_on(place, Argument(target, parameter.name, call), above, evidence)
        elif declared != "object":
            evidence.add(declared)

    def _passed_on(
        self, place: Place, argument: Argument, above: list[ast.AST], evidence: Evidence
    ) -> None:
        """As `_passed`, where the parameter is declared as Any itself."""
        inner = self._evidence(argument.target, argument.name)
        evidence.types += inner.types
        evidence.options += inner.options
        evidence.is_unknown |= inner.is_unknown
        if inner.is_returned and above:
            self._classify(place, argument.call, above, evidence)

    def returned(self, place: Place, declared: object) -> str:
        """The type of a result: as declared, else by what is returned."""
        text = annotations.text(declared, place.module)
        if text != ANY:
            return text
        if place.function not in self._returns:
            self._returns[place.function] = ANY  # a cycle tells nothing
            self._returns[place.function] = self._results(place)
        return self._returns[place.function]

    def _results(self, place: Place) -> str:
        definition = place.definition
        if definition is None:
            return ANY
        found = {self._result(place, definition, node) for node in returns(definition)}
        return union(*found) if (found and found <= _CLEAR) or len(found) == 1 else ANY

    def _result(self, place: Place, definition: sources.Function, node: ast.expr) -> str:
        match node:
            case ast.IfExp():
                parts = [self._result(place, definition, n) for n in (node.body, node.orelse)]
                return union(*parts)
            case ast.Name(name):
                return self._named_result(place, definition, name)
            case ast.Tuple(parts):
                inner = [self._result(place, definition, part) for part in parts]
                return f"tuple[{', '.join(inner)}]"
            case ast.Call():
                return self._called(place, node)
            case ast.Constant(None):
                return "None"
        return ANY

    def _named_result(self, place: Place, definition: sources.Function, name: str) -> str:
        """The type of a local name that is returned: what it is assigned, or an argument that
        was asked whether it is a tensor."""
        values = assignments(definition, name)
        if len(values) == 1:
            return self._result(place, definition, values[0])
        is_argument = not values and name in arguments(definition)
        return TENSOR if is_argument and TENSOR in self._evidence(place, name).options else ANY

    def _called(self, place: Place, call: ast.Call) -> str:
        op = op_called(place, call)
        if op is not None:
            return op_output(op)
        value = place.value(call.func)
        if isinstance(value, type):
            return annotations.text(value, place.module)
        target = callee(place, call)
        if target is None:
            return ANY
        return self.returned(target, inspect.signature(target.function).return_annotation)


#: Results that may differ from call to call: any other mixture is no help to who reads it.
_CLEAR = {TENSOR, SPARSE, SLICES, "None"}

_SILENT = (ast.Compare, ast.FormattedValue, ast.If, ast.IfExp, ast.BinOp, ast.UnaryOp, ast.Dict)


def _attributes(kind: Any) -> set[str]:
    """The names that instances of a class have, those too that `__init__` gives them."""
    code = getattr(getattr(kind, "__init__", None), "__code__", None)
    return {*dir(kind), *(code.co_names if code else ())}


def _compared(place: Place, kinds: ast.expr, evidence: Evidence) -> None:
    """isinstance(value, kinds): it may be one of them."""
    options = kinds.elts if isinstance(kinds, ast.Tuple) else [kinds]
    for option in options:
        parts = annotations.members(ast.unparse(option), place.module)
        evidence.options += [_generic(part) for part in parts]


def _gathered(above: list[ast.AST], evidence: Evidence) -> None:
    """In a list: the values of a name scope are tensors, others tell nothing."""
    call = above[-2] if isinstance(above[-1], ast.keyword) else above[-1]
    if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("_scope"):
        evidence.types.append(TENSOR_LIKE)
    elif isinstance(call, ast.For | ast.comprehension | ast.Call):
        evidence.is_unknown = True


def _generic(part: str) -> str:
    """A class that isinstance was asked about, as a type: a list is a list of anything."""
    match part:
        case "list" | "set" | "frozenset":
            return f"{part}[{ANY}]"
        case "tuple":
            return f"tuple[{ANY}, ...]"
        case "dict":
            return f"dict[{ANY}, {ANY}]"
    return part
