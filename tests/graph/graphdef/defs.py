"""GraphDefs by hand: nodes and functions as TensorFlow 2 writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import thalweg as tf
from thalweg import protos
from thalweg.graph.graphdef import attributes
from thalweg.graph.graphdef.attributes import FunctionName


def node(name: str, op: str, *inputs: str, **attrs: Any) -> Any:
    """A NodeDef; attributes as Python values, dtypes and shapes as `tf` has them."""
    node_def = protos.NodeDef(name=name, op=op, input=inputs)
    for key, value in attrs.items():
        node_def.attr[key].CopyFrom(attributes.encode(value))
    return node_def


def const(name: str, value: Any, dtype: Any = None) -> Any:
    """A NodeDef of a constant."""
    tensor = tf.make_tensor_proto(value, dtype)
    result = protos.NodeDef(name=name, op="Const")
    result.attr["dtype"].type = tensor.dtype
    result.attr["value"].tensor.CopyFrom(tensor)
    return result


def variable(name: str, dtype: Any, shape: Any) -> Any:
    """The handle of a resource variable."""
    return node(name, "VarHandleOp", dtype=dtype, shape=tf.TensorShape(shape), shared_name=name)


def function(
    name: str,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, tuple[Any, str]],
    nodes: Iterable[Any],
    controls: Iterable[str] = (),
) -> Any:
    """A FunctionDef: inputs by dtype; outputs by dtype and the tensor inside; what runs besides."""
    result = protos.FunctionDef()
    result.signature.name = name
    for key, dtype in inputs.items():
        result.signature.input_arg.add(name=key, type=tf.as_dtype(dtype).as_datatype_enum)
    for key, (dtype, source) in outputs.items():
        result.signature.output_arg.add(name=key, type=tf.as_dtype(dtype).as_datatype_enum)
        result.ret[key] = source
    for key in controls:
        result.signature.control_output.append(key)
        result.control_ret[key] = key
    result.node_def.extend(nodes)
    return result


def graph(nodes: Iterable[Any], functions: Iterable[Any] = ()) -> Any:
    """A GraphDef of nodes and functions."""
    result = protos.GraphDef(node=list(nodes))
    result.versions.producer = 2000
    result.library.function.extend(functions)
    return result


def call(name: str, callee: str, *inputs: str, stateful: bool = True, **attrs: Any) -> Any:
    """A call of a function."""
    op = "StatefulPartitionedCall" if stateful else "PartitionedCall"
    return node(name, op, *inputs, f=FunctionName(callee), **attrs)
