"""`tf.onnx.load`: an ONNX model as a function that adds its nodes to the default graph.

A model is checked as a whole when it is loaded: its versions, and that every operator is in the
table (`registry`) or is defined by ONNX as a function of others. Nothing of it runs then.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np

from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape, unknown_shape
from thalweg.onnx.registry import NodeView, Subgraph, Unsupported, translation
from thalweg.onnx.values import elements
from thalweg.ops.core import basic
from thalweg.public import public

_MAX_DEPTH = 32  # of functions and graphs in each other
_DEFAULT = ("", "ai.onnx")


def library() -> Any:
    """The package `onnx`, with an error that says how to get it."""
    try:
        import onnx
    except ImportError as error:
        raise ImportError(
            "ONNX models need the package onnx: pip install 'thalweg[onnx]'"
        ) from error
    return onnx


@public("onnx.load")
def load(model: Any) -> OnnxModel:
    """An ONNX model, to be called on tensors in a graph or in eager code.

    Args:
        model: the path of a model, its bytes, or an `onnx.ModelProto`.

    Returns:
        An `OnnxModel`: `model(x, …)` adds the nodes to the default graph and returns the outputs.

    Raises:
        ValueError: where it is no model, or not a whole one.
        NotImplementedError: where it has operators that are not known; the text names them.

    Example:
        >>> import onnx
        >>> node = onnx.helper.make_node("Relu", ["x"], ["y"])
        >>> vector = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [None])
        >>> ends = [onnx.helper.make_value_info(name, vector) for name in ("x", "y")]
        >>> graph = onnx.helper.make_graph([node], "small", ends[:1], ends[1:])
        >>> model = tf.onnx.load(onnx.helper.make_model(graph))
        >>> sess.run(model(tf.constant([-1.0, 2.0])))
        array([0., 2.], dtype=float32)
    """
    return OnnxModel(_read(model))


def _read(model: Any) -> Any:
    onnx = library()
    if isinstance(model, onnx.ModelProto):
        return model
    from google.protobuf.message import DecodeError

    shown = "bytes" if isinstance(model, bytes) else os.fsdecode(model)
    try:
        if isinstance(model, bytes):
            result = onnx.load_model_from_string(model)
        else:
            result = onnx.load(os.fsdecode(model))
    except (DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{shown} is not an ONNX model: {error}") from error
    if not result.ir_version or not result.HasField("graph") or not result.opset_import:
        raise ValueError(f"{shown} is not an ONNX model: it lacks a version, or a graph")
    return result


class OnnxModel:
    """A loaded model. Call it on tensors, in the order of `inputs` or by name."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._versions = {each.domain: each.version for each in model.opset_import}
        self._functions = {
            (each.domain, each.name): each for each in getattr(model, "functions", ())
        }
        held = {tensor.name for tensor in model.graph.initializer}
        held |= {tensor.values.name for tensor in model.graph.sparse_initializer}
        self._infos = {info.name: info for info in model.graph.input}
        self.inputs = tuple(info.name for info in model.graph.input if info.name not in held)
        self.optional_inputs = tuple(name for name in self._infos if name in held)
        self.outputs = tuple(info.name for info in model.graph.output)
        self._check()

    def __repr__(self) -> str:
        return f"<ONNX model {self._model.graph.name!r}: {self.inputs} -> {self.outputs}>"

    def placeholders(self) -> dict[str, Tensor]:
        """A placeholder for each input, of its dtype and shape."""
        return {name: self._placeholder(name) for name in self.inputs}

    def _placeholder(self, name: str) -> Tensor:
        kind = self._infos[name].type
        if not kind.HasField("tensor_type"):
            raise Unsupported(f"The input {name!r} of the model is not a tensor: pass it by value")
        label = re.sub(r"[^A-Za-z0-9_.\\/>-]", "_", name).lstrip("_/-\\>") or "input"
        return basic.placeholder(elements(kind.tensor_type.elem_type), _shape(kind), name=label)

    def __call__(self, *values: Any, **named: Any) -> Any:
        """The outputs for inputs: one tensor, or a list of them."""
        if len(values) > len(self.inputs):
            raise TypeError(f"The model takes {len(self.inputs)} inputs, not {len(values)}")
        given = dict(zip(self.inputs, values, strict=False)) | named
        unknown = given.keys() - self._infos.keys()
        missing = set(self.inputs) - given.keys()
        if unknown or missing:
            raise TypeError(f"The model lacks {sorted(unknown)}; it needs {sorted(missing)} too")
        with name_scope(None, "onnx"):
            tensors = {name: self._converted(name, value) for name, value in given.items()}
            scope = Scope(self, tensors, self._versions)
            found = scope.run(self._model.graph)
        return found[0] if len(found) == 1 else found

    def _converted(self, name: str, value: Any) -> Any:
        if value is None or isinstance(value, Tensor):
            return value
        if isinstance(value, list | tuple):
            return [self._converted(name, each) for each in cast("list[Any]", value)]
        kind = self._infos[name].type
        if kind.HasField("tensor_type"):
            return convert_to_tensor(value, elements(kind.tensor_type.elem_type))
        return convert_to_tensor(value)

    # What it is made of

    def _check(self) -> None:
        """Raise where the model is of another version, or has operators that nobody knows."""
        onnx = library()
        newest = onnx.defs.onnx_opset_version()
        version = max([self._versions.get(domain, 0) for domain in _DEFAULT])
        if version > newest:
            raise Unsupported(
                f"The model has version {version} of the operators; the package onnx knows {newest}"
            )
        unknown = sorted(set(self._unknown(self._model.graph, self._versions, 0)))
        if unknown:
            raise Unsupported(f"The model has operators that are not here: {', '.join(unknown)}")

    def _unknown(self, part: Any, versions: Mapping[str, int], depth: int) -> Iterator[str]:
        if depth > _MAX_DEPTH:
            raise ValueError(f"The model has graphs nested more than {_MAX_DEPTH} deep")
        for node in part.node:
            version = _version(versions, node.domain)
            local = self._functions.get((node.domain, node.op_type))
            if local is not None:
                own = {each.domain: each.version for each in local.opset_import}
                yield from self._unknown(local, own or versions, depth + 1)
            elif translation(node.domain, node.op_type, version) is None and not _is_function(
                node, version
            ):
                domain = f"{node.domain}." if node.domain not in _DEFAULT else ""
                yield f"{domain}{node.op_type} (version {version}, node {node.name!r})"
            for attribute in node.attribute:
                for inner in (attribute.g, *attribute.graphs):
                    yield from self._unknown(inner, versions, depth + 1)

    def function(self, domain: str, op: str) -> Any:
        """A function of the model itself, if there is one of the name."""
        return self._functions.get((domain, op))


def _version(versions: Mapping[str, int], domain: str) -> int:
    if domain in _DEFAULT:
        return max([versions.get(each, 0) for each in _DEFAULT]) or 1
    return versions.get(domain, 1)


def _shape(kind: Any) -> TensorShape:
    if not kind.tensor_type.HasField("shape"):
        return unknown_shape()
    dims = kind.tensor_type.shape.dim
    return TensorShape([dim.dim_value if dim.HasField("dim_value") else None for dim in dims])


def _schema(node: Any, version: int) -> Any:
    onnx = library()
    try:
        return onnx.defs.get_schema(node.op_type, version, node.domain)
    except onnx.defs.SchemaError:
        return None


def _is_function(node: Any, version: int) -> bool:
    schema = _schema(node, version)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


class Scope:
    """The values of a graph while its nodes are created; lookups continue in the outer graph."""

    def __init__(
        self,
        model: OnnxModel,
        values: dict[str, Any],
        versions: Mapping[str, int],
        outer: Scope | None = None,
        attributes: Mapping[str, Any] | None = None,
        depth: int = 0,
    ) -> None:
        self._model = model
        self._values = values
        self._versions = versions
        self._outer = outer
        self._attributes = attributes or {}  # of the function around, for those that refer to them
        self._held: dict[str, Any] = {}
        self._depth = depth
        if self._depth > _MAX_DEPTH:
            raise ValueError(f"The model has functions nested more than {_MAX_DEPTH} deep")

    def run(self, graph: Any) -> list[Any]:
        """Make all nodes; the outputs."""
        self._held = {tensor.name: tensor for tensor in graph.initializer}
        self._held |= {tensor.values.name: tensor for tensor in graph.sparse_initializer}
        for node in graph.node:
            self._make(node)
        return [self._value(info.name) for info in graph.output]

    def call(self, function: Any) -> list[Any]:
        """Create the nodes of a function. Returns its outputs, None for missing ones."""
        for node in function.node:
            self._make(node)
        return [self._values.get(name) for name in function.output]

    def _value(self, name: str) -> Any:
        if name in self._values:
            return self._values[name]
        if name in self._held:
            result = self._values[name] = basic.constant(_array(self._held[name]))
            return result
        if self._outer is not None:
            return self._outer._value(name)
        raise ValueError(f"The model uses {name!r}, which nothing in it gives")

    def _make(self, unresolved: Any) -> None:
        node = self._resolved(unresolved)
        version = _version(self._versions, node.domain)
        inputs = [self._value(name) if name else None for name in node.input]
        while inputs and inputs[-1] is None:
            inputs.pop()
        attributes = {each.name: _decode(each) for each in node.attribute}
        label = re.sub(r"[^A-Za-z0-9_.]", "_", node.name or node.op_type).lstrip("_.") or "node"
        view = NodeView(
            node.op_type,
            node.name or label,
            version,
            attributes,
            tuple(node.output),
            self._subgraph,
        )
        try:
            with name_scope(label):
                found = self._outputs(node, view, inputs, version)
        except (ValueError, TypeError) as error:
            if "ONNX node" in str(error):
                raise
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"ONNX node {view.name!r} ({node.op_type}): {error}") from error
        for name, value in zip(node.output, found, strict=False):
            if name:
                self._values[name] = value

    def _outputs(self, node: Any, view: NodeView, inputs: list[Any], version: int) -> list[Any]:
        local = self._model.function(node.domain, node.op_type)
        if local is not None:
            own = {each.domain: each.version for each in local.opset_import}
            return self._expanded(local, {**self._versions, **own}, inputs, node)
        translate = translation(node.domain, node.op_type, version)
        if translate is not None:
            found = translate(view, *inputs)
            return list(cast("Any", found)) if isinstance(found, tuple) else [found]
        function = _function_body(node, version, inputs)
        if function is None:
            raise view.unsupported("the operator is not here")
        own = {each.domain: each.version for each in function.opset_import}
        return self._expanded(function, {**self._versions, **own}, inputs, node)

    def _expanded(
        self, function: Any, versions: Mapping[str, int], inputs: list[Any], node: Any
    ) -> list[Any]:
        values = dict(zip(function.input, inputs, strict=False))
        values |= {name: None for name in function.input if name not in values}
        given = {each.name: each for each in getattr(function, "attribute_proto", ())}
        given |= {each.name: each for each in node.attribute}
        return Scope(self._model, values, versions, None, given, self._depth + 1).call(function)

    def _resolved(self, node: Any) -> Any:
        """A node whose attributes are its own, not those of the function around."""
        if not any(attribute.ref_attr_name for attribute in node.attribute):
            return node
        result = type(node)()
        result.CopyFrom(node)
        del result.attribute[:]
        for attribute in node.attribute:
            found = self._attributes.get(attribute.ref_attr_name, attribute)
            if not found.ref_attr_name:
                result.attribute.add().CopyFrom(found)
                result.attribute[-1].name = attribute.name
        return result

    def _subgraph(self, graph: Any) -> Subgraph:
        inputs = tuple(info.name for info in graph.input)

        def run(*values: Any) -> list[Any]:
            given = dict(zip(inputs, values, strict=True))
            own = self._depth + 1
            return Scope(self._model, given, self._versions, self, self._attributes, own).run(graph)

        return Subgraph(inputs, tuple(info.name for info in graph.output), run)


def _array(tensor: Any) -> Any:
    onnx = library()
    if isinstance(tensor, onnx.SparseTensorProto):
        return _dense(tensor)
    try:
        return _plain(onnx.numpy_helper.to_array(tensor))
    except ValueError as error:
        raise ValueError(f"The tensor {tensor.name!r} of the model: {error}") from error


def _plain(array: Any) -> Any:
    """Text as bytes, as tensors hold it."""
    if array.dtype.kind in "OU":
        flat = [str(each).encode() if not isinstance(each, bytes) else each for each in array.flat]
        return np.array(flat, object).reshape(array.shape)
    return array


def _dense(tensor: Any) -> Any:
    onnx = library()
    values = onnx.numpy_helper.to_array(tensor.values)
    places = onnx.numpy_helper.to_array(tensor.indices)
    array: Any = np.zeros([int(size) for size in tensor.dims], values.dtype)
    if places.ndim == 1:
        array.reshape(-1)[places] = values
    else:
        array[tuple(places.T)] = values
    return array


def _decode(attribute: Any) -> Any:
    """The value of an attribute: tensors as arrays, text as str."""
    onnx = library()
    value = onnx.helper.get_attribute_value(attribute)
    kinds = onnx.AttributeProto
    if attribute.type == kinds.TENSOR:
        return _array(value)
    if attribute.type == kinds.SPARSE_TENSOR:
        return _dense(value)
    if attribute.type == kinds.STRING:
        return value.decode("utf-8", "surrogateescape")
    if attribute.type == kinds.STRINGS:
        return [each.decode("utf-8", "surrogateescape") for each in value]
    if attribute.type in (kinds.INTS, kinds.FLOATS):
        return list(value)
    return value


def _function_body(node: Any, version: int, inputs: list[Any]) -> Any:
    """The function that ONNX defines an operator by; of those that depend on types, the one for
    these inputs."""
    onnx = library()
    schema = _schema(node, version)
    if schema is None:
        return None
    if schema.has_function:
        return schema.function_body
    if not schema.has_context_dependent_function:
        return None
    kinds: list[bytes] = []
    for value in inputs:
        kind = onnx.TypeProto()
        if isinstance(value, Tensor):
            dtype = value.dtype.base_dtype
            element = (
                onnx.TensorProto.STRING
                if dtype.name == "string"
                else onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype.as_numpy_dtype))
            )
            shape = None if value.shape.rank is None else value.shape.as_list()
            kind = onnx.helper.make_tensor_type_proto(element, shape)
        kinds.append(kind.SerializeToString())
    text = schema.get_context_dependent_function(node.SerializeToString(), kinds)
    return onnx.FunctionProto.FromString(text) if text else None
