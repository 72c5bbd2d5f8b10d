"""Annotations with every name written in full: `Tensor | None` of some module becomes
`thalweg.graph.node.Tensor | None`, aliases are unfolded, and a union is a tuple of its members."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
from typing import ForwardRef, TypeVar

from tools.stubs.sources import assigned, found, names_of

LIKES = "thalweg.graph.likes"
ANY = "typing.Any"
TENSOR = "thalweg.graph.node.Tensor"
TENSOR_LIKE = f"{LIKES}.TensorLike"
MAYBE_NONE = f"{LIKES}.MaybeNone"

#: What a function that asks for one of these converts first, so that callers may pass more.
CONVERTED = {
    TENSOR: TENSOR_LIKE,
    "thalweg.graph.dtypes.DType": f"{LIKES}.DTypeLike",
    "thalweg.graph.shapes.TensorShape": f"{LIKES}.ShapeLike",
}

_IN_TENSOR_LIKE = frozenset(
    f"{TENSOR} bool int float complex str bytes numpy.ndarray numpy.generic numpy.integer "
    "thalweg.variables.variable.Variable numpy.typing.ArrayLike typing.SupportsFloat "
    "typing.SupportsInt".split()
)

#: A size that may be unknown. Programs know theirs: a check for None after each use would be noise,
#: so type checkers are told that it is an int or something they cannot know.
SIZE = "thalweg.graph.shapes.Size"


def text(annotation: object, module: str) -> str:
    """An annotation that was read in a module; `typing.Any` where there is none."""
    if annotation is inspect.Parameter.empty:
        return ANY
    if isinstance(annotation, type):
        return _qualified(annotation)
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    source = annotation if isinstance(annotation, str) else str(annotation).replace("~", "")
    return " | ".join(dict.fromkeys(members(source, module)))


def members(source: str, module: str) -> list[str]:
    """The members of a union, or the only type there is."""
    node = ast.parse(source.strip(), mode="eval").body
    return _members(node, module)


def union(*types: str) -> str:
    """One type of several: each once, None last; what may be anything is anything."""
    distinct = dict.fromkeys(types)
    if TENSOR_LIKE in distinct:
        distinct = {text: None for text in distinct if text not in _IN_TENSOR_LIKE}
    if ANY in distinct:
        return ANY
    return " | ".join(sorted(distinct, key=lambda t: t == "None"))


def _members(node: ast.expr, module: str) -> list[str]:
    match node:
        case ast.BinOp(left, ast.BitOr(), right):
            return [*_members(left, module), *_members(right, module)]
        case ast.Constant(str(inner)):
            return members(inner, module)
        case ast.Name() | ast.Attribute():
            return _named(ast.unparse(node), module)
    return [_written(node, module)]


def _written(node: ast.expr, module: str) -> str:
    def write(node: ast.expr) -> str:
        return " | ".join(_members(node, module))

    match node:
        case ast.Subscript(ast.Name(name) | ast.Attribute(attr=name), part) if name == "Literal":
            return f"typing.Literal[{ast.unparse(part).strip(chr(40) + chr(41))}]"
        case ast.Subscript(ast.Name(name) | ast.Attribute(attr=name), part) if name == "ClassVar":
            return write(part)
        case ast.Subscript(value, ast.Tuple(parts)):
            return f"{write(value)}[{', '.join(map(write, parts))}]"
        case ast.Subscript(value, part):
            return f"{write(value)}[{write(part)}]"
        case ast.List(parts):
            return f"[{', '.join(map(write, parts))}]"
        case ast.Constant(None):
            return "None"
        case ast.Constant(value) if value is ...:
            return "..."
    return ast.unparse(node)


def _named(name: str, module: str) -> list[str]:
    """What a dotted name of a module stands for."""
    first, _, rest = name.partition(".")
    origin = names_of(module).get(first)
    if origin is None:
        return [name if rest or hasattr(builtins, name) else ANY]
    dotted = f"{origin}.{rest}" if rest else origin
    return _unfolded(dotted) if dotted.startswith("thalweg.") else [dotted]


@functools.cache
def _unfolded(dotted: str) -> list[str]:
    """A class or a name of `likes` as it is; any other alias as what it stands for."""
    module, _, name = dotted.rpartition(".")
    origin = names_of(module).get(name, dotted)
    if origin != dotted:
        return _unfolded(origin) if origin.startswith("thalweg.") else [origin]
    if dotted == SIZE:
        return ["int", ANY]
    if dotted == MAYBE_NONE:
        return [ANY]
    value = found(dotted)
    if module == LIKES or isinstance(value, TypeVar):
        return [dotted]
    if isinstance(value, type):
        return [_qualified(value)]
    alias = assigned(module, name)
    return [ANY] if alias is None else _members(alias, module)


def _qualified(kind: type) -> str:
    if kind.__module__ == "builtins":
        return "None" if kind is type(None) else kind.__name__
    return f"{kind.__module__}.{kind.__qualname__}"
