"""`tf.onnx.export`: what some tensors are computed from, as an ONNX model.

Variables become the constants that they are in a session. Each op is written by its entry of a
table (`writers`); one that is not there is an error that names the node and its line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from thalweg.graph.context import Runner
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType
from thalweg.graph.known import constant_value
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.subgraph import needed
from thalweg.onnx.loading import library
from thalweg.onnx.registry import Unsupported
from thalweg.platform.arrays import Array
from thalweg.platform.files.durable import replace_file
from thalweg.public import public
from thalweg.runtime.session import get_default_session
from thalweg.version import __version__

OPSET = 17
_IR_VERSION = 8  # the one that version 17 of the operators came with
_MAX_BYTES = 1 << 31  # what a protocol buffer can hold

#: (what is written so far, a node) -> the names of the values that are its outputs
Write = Callable[["ModelWriter", Node], Any]
WRITERS: dict[str, Write] = {}


def writer(*names: str) -> Callable[[Write], Write]:
    """Register how ops are written."""

    def register(function: Write) -> Write:
        WRITERS.update(dict.fromkeys(names, function))
        return function

    return register


@public("onnx.export")
def export(
    outputs: TensorLike | Sequence[TensorLike],
    path: str | os.PathLike[str] | None = None,
    inputs: Sequence[TensorLike] | None = None,
    session: Runner | None = None,
) -> Any:
    """Write tensors, and all that they are computed from, as an ONNX model.

    Args:
        outputs: a tensor, or a list of tensors.
        path: the file to write; None writes none.
        inputs: the tensors that the model takes; by default the placeholders that are needed.
        session: the session with the values of variables; by default the current one.

    Returns:
        The `onnx.ModelProto`.

    Raises:
        NotImplementedError: where a node has no ONNX form; the text names it and its line.

    Example:
        >>> x = tf.placeholder(tf.float32, [None, 2], name="x")
        >>> y = tf.nn.relu(tf.matmul(x, [[1.0], [2.0]]), name="y")
        >>> model = tf.onnx.export(y)
        >>> [node.op_type for node in model.graph.node]
        ['MatMul', 'Relu']
        >>> sess.run(tf.onnx.load(model)(tf.constant([[1.0, 1.0]])))
        array([[3.]], dtype=float32)
    """
    ends = cast("list[Any]", [*outputs] if isinstance(outputs, list | tuple) else [outputs])
    model = ModelWriter(ends, inputs, session).model()
    if path is not None:
        if model.ByteSize() >= _MAX_BYTES:
            raise ValueError("An ONNX model in one file cannot be larger than 2 GB.")
        replace_file(os.fsdecode(path), model.SerializeToString())
    return model


class ModelWriter:
    """A model while it is written: nodes, constants, and the names of tensors."""

    def __init__(self, outputs: Sequence[Any], inputs: Sequence[Any] | None, session: Any) -> None:
        self._onnx = library()
        self._session = session
        self._outputs = [_tensor(output) for output in outputs]
        known = {} if inputs is None else dict.fromkeys(map(_tensor, inputs))
        self._nodes = needed(self._outputs, (), known)
        if inputs is None:
            holders = [node for node in self._nodes if node.type == "Placeholder"]
            known = {node.outputs[0]: None for node in holders}
        self.inputs = list(known)
        self.nodes: list[Any] = []
        self._constants: dict[str, Any] = {}
        self._names: dict[Tensor, str] = {tensor: _name(tensor) for tensor in self.inputs}
        self._count = 0

    def model(self) -> Any:
        """Write all nodes; the model."""
        for node in self._nodes:
            if not any(tensor in self._names for tensor in node.outputs):
                self._write(node)
        helper = self._onnx.helper
        ends = [self._info(tensor, self._final(tensor)) for tensor in self._outputs]
        graph = helper.make_graph(
            self.nodes,
            "thalweg",
            [self._info(tensor, self._names[tensor]) for tensor in self.inputs],
            ends,
            self._initializers(ends),
        )
        versions = [helper.make_opsetid("", OPSET)]
        result = helper.make_model(graph, opset_imports=versions, producer_name="thalweg")
        result.ir_version, result.producer_version = _IR_VERSION, __version__
        return result

    def _initializers(self, ends: Sequence[Any]) -> list[Any]:
        """The constants that some node uses."""
        used = {name for node in self.nodes for name in node.input} | {end.name for end in ends}
        make = self._onnx.numpy_helper.from_array
        return [make(array, name) for name, array in self._constants.items() if name in used]

    def _final(self, tensor: Tensor) -> str:
        """The name of an output, which is the tensor's own whatever it came from."""
        name, own = self.name(tensor), _name(tensor)
        if name != own:
            self.nodes.append(self._onnx.helper.make_node("Identity", [name], [own], name=own))
            self._names[tensor] = own
        return own

    def _info(self, tensor: Tensor, name: str) -> Any:
        shape = None if tensor.shape.rank is None else tensor.shape.as_list()
        kind = self.element_type(tensor.dtype.base_dtype)
        return self._onnx.helper.make_tensor_value_info(name, kind, shape)

    def element_type(self, dtype: DType) -> int:
        """The ONNX element type of a dtype."""
        if dtype.name == "string":
            return self._onnx.TensorProto.STRING
        return self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype.as_numpy_dtype))

    # What entries of the table use

    def _write(self, node: Node) -> None:
        write = WRITERS.get(node.type)
        if write is None:
            raise Unsupported(
                f"{node.type} has no ONNX form here: node {node.name!r}, made at {node.origin}"
            )
        found = write(self, node)
        names = [found] if isinstance(found, str) else list(found or ())
        for tensor, name in zip(node.outputs, names, strict=False):
            self._names[tensor] = name

    def name(self, tensor: Tensor) -> str:
        """The name of a tensor's value."""
        if tensor not in self._names:
            raise Unsupported(f"{tensor.name} has no value in the model")
        return self._names[tensor]

    def names(self, node: Node) -> list[str]:
        """The names of a node's inputs."""
        return [self.name(tensor) for tensor in node.inputs]

    def constant(self, value: Any, dtype: Any = None) -> str:
        """A constant; its name."""
        name = f"constant_{len(self._constants)}"
        self._constants[name] = np.asarray(value, dtype)
        return name

    def ints(self, values: Any) -> str:
        """A constant vector of integers."""
        return self.constant(np.array(values, np.int64).reshape(-1))

    def known(self, tensor: Tensor) -> Array | None:
        """The value of a tensor where it is a constant, or a variable that the session has."""
        name = self._names.get(tensor)
        if name in self._constants:
            return self._constants[name]
        return constant_value(tensor)

    def required(self, node: Node, tensor: Tensor, what: str) -> Array:
        """The value of a tensor that must be a constant."""
        found = self.known(tensor)
        if found is None:
            raise Unsupported(
                f"{what} of {node.name!r} ({node.type}) must be a constant in ONNX, made at "
                f"{node.origin}"
            )
        return found

    def emit(
        self,
        op: str,
        inputs: Sequence[str],
        outputs: int = 1,
        name: str | None = None,
        **attrs: Any,
    ) -> Any:
        """A node; the names of its outputs, of one the name itself."""
        self._count += 1
        label = name or f"{op}_{self._count}"
        names = [label if k == 0 else f"{label}_{k}" for k in range(outputs)]
        made = self._onnx.helper.make_node(op, list(inputs), names, name=label, **attrs)
        self.nodes.append(made)
        return names[0] if outputs == 1 else names

    def variable(self, node: Node) -> str:
        """The value of a variable in the session, as a constant."""
        session = self._session
        if session is None:
            session = get_default_session()
        if session is None:
            raise ValueError(f"The value of the variable {node.name!r} needs a session")
        return self.constant(session.run(node.outputs[0]))


def _tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else convert_to_tensor(value)


def _name(tensor: Tensor) -> str:
    return tensor.op.name if not tensor.value_index else tensor.name.replace(":", "_")
