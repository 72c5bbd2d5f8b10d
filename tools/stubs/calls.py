"""What the calls in a function run: op blocks, functions, constructors, methods."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any

from thalweg.graph.op import Op
from tools.stubs import sources
from tools.stubs.annotations import ANY, TENSOR, TENSOR_LIKE
from tools.stubs.uses import assignments

MISSING = object()


@dataclass(frozen=True)
class Place:
    """A function, the class it belongs to, and where its names are looked up."""

    function: FunctionType
    owner: type | None = None

    @property
    def module(self) -> str:
        """The module that the function was written in."""
        return self.function.__globals__["__name__"]

    @property
    def definition(self) -> sources.Function | None:
        """The function as it was written."""
        return sources.definition_of(self.function)

    def value(self, node: ast.expr) -> Any:
        """What an expression stands for while the library is only defined, or MISSING."""
        match node:
            case ast.Name(name):
                return self._named(name)
            case ast.Attribute(ast.Name("self"), name) if self.owner:
                return inspect.getattr_static(self.owner, name, MISSING)
            case ast.Attribute(ast.Call(ast.Name("super"), []), name) if self.owner:
                return _inherited(self.owner, self.function, name)
            case ast.Attribute(base, name):
                return _attribute(self.value(base), name)
        return MISSING

    def _named(self, name: str) -> Any:
        code = self.function.__code__
        if name in code.co_varnames:
            return MISSING
        if name in code.co_freevars:
            cell = (self.function.__closure__ or ())[code.co_freevars.index(name)]
            return cell.cell_contents
        return self.function.__globals__.get(name, MISSING)


def _attribute(base: Any, name: str) -> Any:
    return getattr(base, name, MISSING) if isinstance(base, ModuleType | type) else MISSING


def _inherited(owner: type, function: FunctionType, name: str) -> Any:
    """`super().name` in a method: what the next class has that defines it."""
    rest = [kind for kind in owner.__mro__ if vars(kind).get(function.__name__) is not function]
    return next((vars(kind)[name] for kind in rest if name in vars(kind)), MISSING)


def op_called(place: Place, call: ast.Call) -> type[Op] | None:
    """The block of `Sum(keep_dims=True)(x)`, or of `op(x)` where `op` is a block's value."""
    made = call.func
    if isinstance(made, ast.Name) and place.definition is not None:
        assigned = assignments(place.definition, made.id)
        made = assigned[0] if len(assigned) == 1 else made
    if isinstance(made, ast.Call):
        kind = place.value(made.func)
        return kind if isinstance(kind, type) and issubclass(kind, Op) else None
    value = place.value(made)
    return type(value) if isinstance(value, Op) else None


def op_input(op: type[Op], call: ast.Call, argument: ast.AST) -> str:
    """The type of an input of an op block."""
    inputs = op.parsed.inputs
    position = call.args.index(argument) if argument in call.args else len(inputs)
    if position >= len(inputs):
        return ANY
    if inputs[position].is_list:
        return f"collections.abc.Iterable[{TENSOR_LIKE}]"
    return TENSOR_LIKE


def op_output(op: type[Op]) -> str:
    """What calling an op block returns."""
    outputs = op.parsed.outputs
    if len(outputs) > 1:
        return f"{op.__module__}.{op.__qualname__}.result"
    if not outputs:
        return "thalweg.graph.node.Node"
    return f"list[{TENSOR}]" if outputs[0].is_list else TENSOR


def callee(place: Place, call: ast.Call) -> Place | None:
    """The function that a call runs: of a class the constructor, of an instance `__call__`."""
    value = place.value(call.func)
    if isinstance(value, type):
        init = inspect.getattr_static(value, "__init__", None)
        return Place(init, value) if isinstance(init, FunctionType) else None
    if isinstance(call.func, ast.Call):
        value = inspect.getattr_static(place.value(call.func.func), "__call__", None)
    value = value.__func__ if isinstance(value, MethodType | staticmethod | classmethod) else value
    value = inspect.unwrap(value) if callable(value) else value
    return Place(value) if isinstance(value, FunctionType) else None


def bound(function: FunctionType, call: ast.Call, argument: ast.AST) -> inspect.Parameter | None:
    """The parameter that an argument of a call is bound to."""
    parameters = list(inspect.signature(function).parameters.values())
    if parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    if isinstance(argument, ast.keyword):
        rest = [p for p in parameters if p.kind is p.VAR_KEYWORD]
        return next((p for p in [*parameters, *rest] if p.name == argument.arg or p in rest), None)
    position = next((i for i, given in enumerate(call.args) if given is argument), None)
    if position is None or any(isinstance(a, ast.Starred) for a in call.args[:position]):
        return None
    if position >= len(parameters):
        return None
    is_plain = parameters[position].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    return parameters[position] if is_plain else None


def methods(owner: type) -> list[FunctionType]:
    """The methods of a class and of its bases in the library."""
    kinds = [kind for kind in owner.__mro__ if kind.__module__.startswith("thalweg.")]
    values = (value for kind in kinds for value in vars(kind).values())
    values = (value.fget if isinstance(value, property) else value for value in values)
    return [value for value in values if isinstance(value, FunctionType)]
