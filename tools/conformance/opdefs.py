"""Ops that a test declares for itself by OpDef protobufs: block classes with no kernel.

Comes in: an OpList. Goes out: blocks in Thalweg's registry whose shapes are unknown.
"""

import types
from collections.abc import Iterator
from typing import Any

from thalweg.graph import op
from thalweg.graph.dtypes import as_dtype


def register_op_list(op_list: Any) -> None:
    """Add every op of the list to the registry; a test's own op wins over one of that name."""
    for definition in op_list.op:
        op.REGISTRY.pop(definition.name, None)
        body = block_body(definition)
        types.new_class(definition.name, (op.Op,), {"name": definition.name}, body_setter(body))


def body_setter(body: dict[str, Any]) -> Any:
    return lambda namespace: namespace.update(body)


def block_body(definition: Any) -> dict[str, Any]:
    inputs = ", ".join(argument(arg) for arg in definition.input_arg)
    outputs = ", ".join(argument(arg) for arg in definition.output_arg)
    return {
        "signature": f"{inputs} -> {outputs}",
        "__annotations__": dict.fromkeys(free_attributes(definition), Any),
        "shape": unknown_shapes,
        "numpy": no_kernel,
        **dict(defaults(definition)),
    }


def argument(arg: Any) -> str:
    """One argument in the words of a signature: `name: N*&T`."""
    if arg.type_list_attr:
        return f"{arg.name}: [{arg.type_list_attr}]"
    kind = arg.type_attr or as_dtype(arg.type).name
    reference = "&" if arg.is_ref else ""
    count = f"{arg.number_attr}*" if arg.number_attr else ""
    return f"{arg.name}: {count}{reference}{kind}"


def free_attributes(definition: Any) -> list[str]:
    """The attributes that the inputs do not settle, and types that only outputs name."""
    bound = {name for arg in definition.input_arg for name in attributes_of(arg)}
    named = [attribute.name for attribute in definition.attr]
    named += [name for arg in definition.output_arg for name in attributes_of(arg)]
    return [name for name in dict.fromkeys(named) if name not in bound]


def attributes_of(arg: Any) -> Iterator[str]:
    yield from filter(None, (arg.type_attr, arg.type_list_attr, arg.number_attr))


def defaults(definition: Any) -> Iterator[tuple[str, Any]]:
    """Declared defaults, and None for an attribute that no argument needs."""
    arguments = [*definition.input_arg, *definition.output_arg]
    needed = {name for arg in arguments for name in attributes_of(arg)}
    for attribute in definition.attr:
        field = attribute.default_value.WhichOneof("value")
        if field:
            yield attribute.name, getattr(attribute.default_value, field)
        elif attribute.name not in needed:
            yield attribute.name, None


def unknown_shapes(self: Any, *inputs: Any) -> None:
    """None stands for an unknown shape of every output."""


def no_kernel(self: Any, *inputs: Any) -> Any:
    raise RuntimeError(f"op {self.type_name} was declared by a test and cannot run")
