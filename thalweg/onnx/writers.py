"""How each op is written in ONNX: the table of `exporting`, a block per op or family."""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.graph.node import Node, Tensor
from thalweg.onnx.exporting import ModelWriter, writer
from thalweg.onnx.registry import Unsupported

_SAME: dict[str, str] = {
    "Abs": "Abs",
    "Acos": "Acos",
    "Acosh": "Acosh",
    "Add": "Add",
    "Asin": "Asin",
    "Asinh": "Asinh",
    "Atan": "Atan",
    "Atanh": "Atanh",
    "Ceil": "Ceil",
    "Cos": "Cos",
    "Cosh": "Cosh",
    "Div": "Div",
    "Elu": "Elu",
    "Equal": "Equal",
    "Erf": "Erf",
    "Exp": "Exp",
    "Floor": "Floor",
    "Greater": "Greater",
    "GreaterEqual": "GreaterOrEqual",
    "Inv": "Reciprocal",
    "IsInf": "IsInf",
    "IsNan": "IsNaN",
    "Less": "Less",
    "LessEqual": "LessOrEqual",
    "Log": "Log",
    "LogicalAnd": "And",
    "LogicalNot": "Not",
    "LogicalOr": "Or",
    "Maximum": "Max",
    "Minimum": "Min",
    "Mul": "Mul",
    "Neg": "Neg",
    "Pow": "Pow",
    "RealDiv": "Div",
    "Reciprocal": "Reciprocal",
    "Relu": "Relu",
    "Rint": "Round",
    "Round": "Round",
    "Selu": "Selu",
    "Sigmoid": "Sigmoid",
    "Sign": "Sign",
    "Sin": "Sin",
    "Sinh": "Sinh",
    "Softplus": "Softplus",
    "Softsign": "Softsign",
    "Sqrt": "Sqrt",
    "Sub": "Sub",
    "SelectV2": "Where",
    "AddN": "Sum",
    "Tan": "Tan",
    "Tanh": "Tanh",
    "TruncateDiv": "Div",
}


@writer(*_SAME)
def same(model: ModelWriter, node: Node) -> str:
    """An operator that takes and means the same."""
    return model.emit(_SAME[node.type], model.names(node), name=node.name)


@writer("Const")
def constant(model: ModelWriter, node: Node) -> str:
    value = np.asarray(node.op.__dict__["value"])
    if value.dtype.kind == "O":
        value = np.array([each.decode() for each in value.flat], object).reshape(value.shape)
    return model.constant(value)


@writer("VariableV2", "Variable", "VarHandleOp")
def variable(model: ModelWriter, node: Node) -> str:
    return model.variable(node)


@writer("Identity", "StopGradient", "PreventGradient", "CheckNumerics", "PlaceholderWithDefault")
def identity(model: ModelWriter, node: Node) -> str:
    return model.name(node.inputs[0])


@writer("IdentityN")
def identity_n(model: ModelWriter, node: Node) -> list[str]:
    return model.names(node)


def _number(model: ModelWriter, tensor: Tensor, value: float) -> str:
    return model.constant(np.array(value, tensor.dtype.base_dtype.as_numpy_dtype))


# Elementwise compositions


@writer("Rsqrt")
def rsqrt(model: ModelWriter, node: Node) -> str:
    root = model.emit("Sqrt", model.names(node))
    return model.emit("Reciprocal", [root], name=node.name)


@writer("Square")
def square(model: ModelWriter, node: Node) -> str:
    (x,) = model.names(node)
    return model.emit("Mul", [x, x], name=node.name)


@writer("SquaredDifference")
def squared_difference(model: ModelWriter, node: Node) -> str:
    difference = model.emit("Sub", model.names(node))
    return model.emit("Mul", [difference, difference], name=node.name)


@writer("NotEqual")
def not_equal(model: ModelWriter, node: Node) -> str:
    return model.emit("Not", [model.emit("Equal", model.names(node))], name=node.name)


@writer("Relu6")
def relu6(model: ModelWriter, node: Node) -> str:
    low, high = (_number(model, node.inputs[0], value) for value in (0, 6))
    return model.emit("Clip", [*model.names(node), low, high], name=node.name)


@writer("LeakyRelu")
def leaky_relu(model: ModelWriter, node: Node) -> str:
    alpha = float(node.op.__dict__["alpha"])
    return model.emit("LeakyRelu", model.names(node), name=node.name, alpha=alpha)


@writer("Log1p")
def log1p(model: ModelWriter, node: Node) -> str:
    one = _number(model, node.inputs[0], 1)
    return model.emit("Log", [model.emit("Add", [*model.names(node), one])], name=node.name)


@writer("Expm1")
def expm1(model: ModelWriter, node: Node) -> str:
    one = _number(model, node.inputs[0], 1)
    return model.emit("Sub", [model.emit("Exp", model.names(node)), one], name=node.name)


@writer("Gelu")
def gelu(model: ModelWriter, node: Node) -> str:
    (x,) = model.names(node)
    half, one, root = (_number(model, node.inputs[0], v) for v in (0.5, 1, np.sqrt(2)))
    error = model.emit("Erf", [model.emit("Div", [x, root])])
    scaled = model.emit("Mul", [x, model.emit("Add", [error, one])])
    return model.emit("Mul", [scaled, half], name=node.name)


@writer("FloorDiv")
def floor_div(model: ModelWriter, node: Node) -> str:
    if node.inputs[0].dtype.is_floating:
        return model.emit("Floor", [model.emit("Div", model.names(node))], name=node.name)
    x, y = model.names(node)
    exact = model.emit("Sub", [x, model.emit("Mod", [x, y])])
    return model.emit("Div", [exact, y], name=node.name)


@writer("FloorMod")
def floor_mod(model: ModelWriter, node: Node) -> str:
    x, y = model.names(node)
    if not node.inputs[0].dtype.is_floating:
        return model.emit("Mod", [x, y], name=node.name)
    whole = model.emit("Floor", [model.emit("Div", [x, y])])
    return model.emit("Sub", [x, model.emit("Mul", [whole, y])], name=node.name)


@writer("Select")
def select(model: ModelWriter, node: Node) -> str:
    condition, x, y = model.names(node)
    spare = (node.inputs[1].shape.rank or 0) - (node.inputs[0].shape.rank or 0)
    if spare and node.inputs[0].shape.rank:
        axes = model.ints(range(1, 1 + spare))
        condition = model.emit("Unsqueeze", [condition, axes])
    return model.emit("Where", [condition, x, y], name=node.name)


@writer("Cast")
def cast(model: ModelWriter, node: Node) -> str:
    to = model.element_type(node.outputs[0].dtype.base_dtype)
    return model.emit("Cast", model.names(node), name=node.name, to=to)


@writer("ZerosLike", "OnesLike")
def filled_like(model: ModelWriter, node: Node) -> str:
    kind = node.outputs[0].dtype.base_dtype.as_numpy_dtype
    value = np.array([0 if node.type == "ZerosLike" else 1], kind)
    return _filled(model, model.emit("Shape", model.names(node)), value, node.name)


def _filled(model: ModelWriter, shape: str, value: Any, name: str) -> str:
    import onnx

    tensor = onnx.numpy_helper.from_array(value)
    return model.emit("ConstantOfShape", [shape], name=name, value=tensor)


# Shapes


def _wide(model: ModelWriter, tensor: Tensor) -> str:
    """Integers as int64, which ONNX wants shapes in."""
    found = model.known(tensor)
    if found is not None:
        return model.constant(np.asarray(found, np.int64))
    return model.emit("Cast", [model.name(tensor)], to=7)


@writer("Shape", "Size")
def shape(model: ModelWriter, node: Node) -> str:
    found = model.emit(node.type, model.names(node))
    to = model.element_type(node.outputs[0].dtype.base_dtype)
    return model.emit("Cast", [found], name=node.name, to=to)


@writer("Rank")
def rank(model: ModelWriter, node: Node) -> str:
    known = node.inputs[0].shape.rank
    if known is None:
        found = model.emit("Size", [model.emit("Shape", model.names(node))])
        return model.emit("Cast", [found], name=node.name, to=6)
    return model.constant(np.int32(known))


@writer("Reshape")
def reshape(model: ModelWriter, node: Node) -> str:
    x, sizes = node.inputs
    allowzero = 1 if (k := model.known(sizes)) is not None and 0 in np.ravel(k) else 0
    inputs = [model.name(x), _wide(model, sizes)]
    return model.emit("Reshape", inputs, name=node.name, allowzero=allowzero)


@writer("Transpose")
def transpose(model: ModelWriter, node: Node) -> str:
    order = model.required(node, node.inputs[1], "the permutation")
    return _transposed(model, model.name(node.inputs[0]), order.tolist(), node.name)


def _transposed(model: ModelWriter, x: str, order: list[int], name: str | None = None) -> str:
    return model.emit("Transpose", [x], name=name, perm=order)


@writer("ExpandDims")
def expand_dims(model: ModelWriter, node: Node) -> str:
    axis = model.ints(model.required(node, node.inputs[1], "the axis"))
    return model.emit("Unsqueeze", [model.name(node.inputs[0]), axis], name=node.name)


@writer("Squeeze")
def squeeze(model: ModelWriter, node: Node) -> str:
    axes = list(node.op.__dict__.get("squeeze_dims") or ())
    inputs = model.names(node) + ([model.ints(axes)] if axes else [])
    return model.emit("Squeeze", inputs, name=node.name)


@writer("BroadcastTo")
def broadcast_to(model: ModelWriter, node: Node) -> str:
    x, sizes = node.inputs
    return model.emit("Expand", [model.name(x), _wide(model, sizes)], name=node.name)


@writer("Fill")
def fill(model: ModelWriter, node: Node) -> str:
    sizes, value = node.inputs
    return model.emit("Expand", [model.name(value), _wide(model, sizes)], name=node.name)


@writer("Range")
def range_(model: ModelWriter, node: Node) -> str:
    return model.emit("Range", model.names(node), name=node.name)


@writer("Tile")
def tile(model: ModelWriter, node: Node) -> str:
    x, times = node.inputs
    return model.emit("Tile", [model.name(x), _wide(model, times)], name=node.name)


@writer("Concat", "ConcatV2")
def concat(model: ModelWriter, node: Node) -> str:
    *parts, axis = node.inputs
    place = int(model.required(node, axis, "the axis"))
    return model.emit("Concat", [model.name(p) for p in parts], name=node.name, axis=place)


@writer("Pack")
def pack(model: ModelWriter, node: Node) -> str:
    axis = int(node.op.__dict__["axis"])
    where = model.ints([axis])
    parts = [model.emit("Unsqueeze", [model.name(each), where]) for each in node.inputs]
    return model.emit("Concat", parts, name=node.name, axis=axis)


@writer("Unpack")
def unpack(model: ModelWriter, node: Node) -> list[str]:
    axis, count = int(node.op.__dict__["axis"]), len(node.outputs)
    parts = _split(model, model.name(node.inputs[0]), [1] * count, axis)
    where = model.ints([axis])
    return [model.emit("Squeeze", [part, where]) for part in parts]


def _split(model: ModelWriter, x: str, sizes: Any, axis: int) -> list[str]:
    found = model.emit("Split", [x, model.ints(sizes)], outputs=len(sizes), axis=axis)
    return [found] if isinstance(found, str) else found


@writer("Split")
def split(model: ModelWriter, node: Node) -> list[str]:
    axis, x = node.inputs
    place = int(model.required(node, axis, "the axis"))
    sizes = [tensor.shape.as_list()[place] for tensor in node.outputs]
    if None in sizes:
        raise Unsupported(f"The size of the axis that {node.name!r} splits must be known")
    return _split(model, model.name(x), sizes, place)


@writer("SplitV")
def split_v(model: ModelWriter, node: Node) -> list[str]:
    x, sizes, axis = node.inputs
    place = int(model.required(node, axis, "the axis"))
    given = model.required(node, sizes, "the sizes").tolist()
    if -1 in given:
        given = [tensor.shape.as_list()[place] for tensor in node.outputs]
    return _split(model, model.name(x), given, place)


@writer("Pad", "PadV2", "MirrorPad")
def pad(model: ModelWriter, node: Node) -> str:
    x, paddings, *value = node.inputs
    border = model.required(node, paddings, "the border")
    mode = str(node.op.__dict__.get("mode", "CONSTANT"))
    if mode == "SYMMETRIC":
        raise Unsupported(f"{node.name!r}: ONNX has no symmetric padding")
    pads = model.ints(np.concatenate([border[:, 0], border[:, 1]]))
    fill_ = [model.name(value[0])] if value else []
    inputs = [model.name(x), pads, *fill_]
    return model.emit(
        "Pad", inputs, name=node.name, mode="reflect" if mode == "REFLECT" else "constant"
    )


@writer("Slice")
def slice_(model: ModelWriter, node: Node) -> str:
    x, begin, size = node.inputs
    first, count = model.known(begin), model.known(size)
    if first is not None and count is not None:
        last = np.where(count < 0, np.iinfo(np.int64).max, first.astype(np.int64) + count)
        ends = [model.ints(first), model.ints(last)]
    else:
        if count is None or (count < 0).any():
            raise Unsupported(f"The sizes of {node.name!r} must be constants in ONNX")
        starts = _wide(model, begin)
        ends = [starts, model.emit("Add", [starts, model.ints(count)])]
    axes = model.ints(range(x.shape.rank or len(np.ravel(count))))
    return model.emit("Slice", [model.name(x), *ends, axes], name=node.name)


@writer("StridedSlice")
def strided_slice(model: ModelWriter, node: Node) -> str:
    """Ranges as a Slice, then axes that go and axes that come."""
    x, *bounds = node.inputs
    values = [model.required(node, each, "the bounds").tolist() for each in bounds]
    ranges = _Ranges(node, values)
    found = model.name(x)
    if ranges.axes:
        held = (ranges.starts, ranges.ends, ranges.axes, ranges.steps)
        found = model.emit("Slice", [found, *(model.ints(each) for each in held)])
    if ranges.gone:
        found = model.emit("Squeeze", [found, model.ints(ranges.gone)])
    return model.emit("Unsqueeze", [found, model.ints(ranges.come)]) if ranges.come else found


class _Ranges:
    """The subscripts of a StridedSlice: ranges by axis, axes that go, axes that come."""

    def __init__(self, node: Node, values: list[list[int]]) -> None:
        self._masks = node.op.__dict__
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.steps: list[int] = []
        self.axes: list[int] = []
        self.gone: list[int] = []
        self.come: list[int] = []
        count = len(values[0])
        new = sum(self._has("new_axis_mask", k) for k in range(count))
        axis = place = 0
        for k, bounds in enumerate(zip(*values, strict=True)):
            if self._has("ellipsis_mask", k):
                rank = node.inputs[0].shape.rank
                if rank is None:
                    raise Unsupported(f"The rank of the input of {node.name!r} must be known")
                skipped = rank - (count - 1 - new)
                axis, place = axis + skipped, place + skipped
            elif self._has("new_axis_mask", k):
                self.come.append(place)
                place += 1
            else:
                place += self._add(k, axis, *bounds)
                axis += 1

    def _has(self, mask: str, k: int) -> bool:
        return bool(self._masks[mask] >> k & 1)

    def _add(self, k: int, axis: int, start: int, end: int, step: int) -> int:
        """A range or an index along an axis; how many axes are left of it."""
        largest = np.iinfo(np.int64).max
        is_index = self._has("shrink_axis_mask", k)
        if is_index:
            end, step = (start + 1) or largest, 1
            self.gone.append(axis)
        elif self._has("end_mask", k):
            end = largest if step > 0 else -largest
        if self._has("begin_mask", k) and not is_index:
            start = 0 if step > 0 else largest
        self.starts.append(start)
        self.ends.append(end)
        self.steps.append(step)
        self.axes.append(axis)
        return 0 if is_index else 1


@writer("GatherV2")
def gather(model: ModelWriter, node: Node) -> str:
    x, indices, axis = node.inputs
    if node.op.__dict__.get("batch_dims"):
        raise Unsupported(f"{node.name!r}: a gather by batches has no ONNX form here")
    place = int(model.required(node, axis, "the axis"))
    return model.emit("Gather", [model.name(x), model.name(indices)], name=node.name, axis=place)


@writer("GatherNd")
def gather_nd(model: ModelWriter, node: Node) -> str:
    x, indices = node.inputs
    return model.emit("GatherND", [model.name(x), _wide(model, indices)], name=node.name)


@writer("OneHot")
def one_hot(model: ModelWriter, node: Node) -> str:
    indices, depth, on, off = node.inputs
    axes = model.ints([0])
    values = [model.emit("Unsqueeze", [model.name(each), axes]) for each in (off, on)]
    pair = model.emit("Concat", values, axis=0)
    inputs = [model.name(indices), model.name(depth), pair]
    return model.emit("OneHot", inputs, name=node.name, axis=int(node.op.__dict__["axis"]))


# Reductions

_REDUCTIONS = {"Mean": "ReduceMean", "Max": "ReduceMax", "Min": "ReduceMin", "Prod": "ReduceProd"}


@writer(*_REDUCTIONS, "Sum", "All", "Any")
def reduction(model: ModelWriter, node: Node) -> str:
    x, axes = node.inputs
    given = np.ravel(model.required(node, axes, "the axes")).tolist()
    keep = int(node.op.__dict__["keep_dims"])
    name = model.name(x)
    if node.type in ("All", "Any"):
        wide = model.emit("Cast", [name], to=6)
        op = "ReduceMin" if node.type == "All" else "ReduceMax"
        found = model.emit(op, [wide], axes=given, keepdims=keep)
        return model.emit("Cast", [found], name=node.name, to=9)
    if not given:
        return name
    if node.type == "Sum":
        return model.emit("ReduceSum", [name, model.ints(given)], name=node.name, keepdims=keep)
    return model.emit(_REDUCTIONS[node.type], [name], name=node.name, axes=given, keepdims=keep)


@writer("ArgMax", "ArgMin")
def extreme(model: ModelWriter, node: Node) -> str:
    x, axis = node.inputs
    place = int(model.required(node, axis, "the axis"))
    found = model.emit(node.type, [model.name(x)], axis=place, keepdims=0)
    to = model.element_type(node.outputs[0].dtype.base_dtype)
    return model.emit("Cast", [found], name=node.name, to=to)


@writer("TopKV2")
def top_k(model: ModelWriter, node: Node) -> list[str]:
    x, k = node.inputs
    count = model.emit("Reshape", [_wide(model, k), model.ints([1])])
    values, indices = model.emit("TopK", [model.name(x), count], outputs=2, axis=-1)
    return [values, model.emit("Cast", [indices], to=6)]


@writer("Cumsum")
def cumsum(model: ModelWriter, node: Node) -> str:
    flags = {key: int(node.op.__dict__[key]) for key in ("exclusive", "reverse")}
    return model.emit("CumSum", model.names(node), name=node.name, **flags)


@writer("Softmax", "LogSoftmax")
def softmax(model: ModelWriter, node: Node) -> str:
    return model.emit(node.type, model.names(node), name=node.name, axis=-1)


# Matrices and images


@writer("MatMul", "BatchMatMul", "BatchMatMulV2")
def matmul(model: ModelWriter, node: Node) -> str:
    held = node.op.__dict__
    are_transposed = [
        held.get("transpose_a") or held.get("adj_x"),
        held.get("transpose_b") or held.get("adj_y"),
    ]
    inputs: list[str] = []
    for tensor, is_transposed in zip(node.inputs, are_transposed, strict=True):
        name = model.name(tensor)
        if is_transposed:
            rank = tensor.shape.rank
            if rank is None:
                raise Unsupported(f"The rank of an input of {node.name!r} must be known")
            name = _transposed(model, name, [*range(rank - 2), rank - 1, rank - 2])
        inputs.append(name)
    return model.emit("MatMul", inputs, name=node.name)


@writer("BiasAdd")
def bias_add(model: ModelWriter, node: Node) -> str:
    x, bias = model.names(node)
    if str(node.op.__dict__.get("data_format", "NHWC")).startswith("NC"):
        rank = node.inputs[0].shape.rank or 4
        bias = model.emit("Reshape", [bias, model.ints([-1, *[1] * (rank - 2)])])
    return model.emit("Add", [x, bias], name=node.name)


def _is_last(node: Node) -> bool:
    return not str(node.op.__dict__.get("data_format", "NHWC")).startswith("NC")


def _image(model: ModelWriter, node: Node) -> str:
    """The first input with channels second."""
    x = model.name(node.inputs[0])
    return _transposed(model, x, [0, 3, 1, 2]) if _is_last(node) else x


def _back(model: ModelWriter, node: Node, found: str) -> str:
    return _transposed(model, found, [0, 2, 3, 1], node.name) if _is_last(node) else found


def _spatial(node: Node, field: str) -> list[int]:
    values = list(node.op.__dict__.get(field) or [1, 1, 1, 1])
    return [int(each) for each in (values[1:3] if _is_last(node) else values[2:4])]


def _border(node: Node) -> dict[str, Any]:
    padding = str(node.op.__dict__["padding"])
    if padding == "EXPLICIT":
        given = list(node.op.__dict__["explicit_paddings"])
        start = 2 if _is_last(node) else 4
        top, bottom, left, right = given[start : start + 4]
        return {"pads": [int(each) for each in (top, left, bottom, right)]}
    return {"auto_pad": "SAME_UPPER" if padding == "SAME" else "VALID"}


def _filters(model: ModelWriter, tensor: Tensor, order: list[int]) -> str:
    """Filters in another order; of constants, now."""
    known = model.known(tensor)
    if known is not None:
        return model.constant(np.ascontiguousarray(np.transpose(known, order)))
    return _transposed(model, model.name(tensor), order)


@writer("Conv2D")
def conv2d(model: ModelWriter, node: Node) -> str:
    options: dict[str, Any] = _border(node) | {
        "strides": _spatial(node, "strides"),
        "dilations": _spatial(node, "dilations"),
    }
    sizes = node.inputs[1].shape.as_list()
    channels = node.inputs[0].shape.as_list()[3 if _is_last(node) else 1]
    group = 1 if channels is None or not sizes[2] else channels // sizes[2]
    filters = _filters(model, node.inputs[1], [3, 2, 0, 1])
    found = model.emit("Conv", [_image(model, node), filters], group=group, **options)
    return _back(model, node, found)


@writer("DepthwiseConv2dNative")
def depthwise(model: ModelWriter, node: Node) -> str:
    height, width, channels, times = (int(size or 0) for size in node.inputs[1].shape.as_list())
    options: dict[str, Any] = _border(node) | {
        "strides": _spatial(node, "strides"),
        "dilations": _spatial(node, "dilations"),
    }
    filters = _filters(model, node.inputs[1], [2, 3, 0, 1])
    shape = model.ints([channels * times, 1, height, width])
    known = model.known(node.inputs[1])
    if known is not None:
        transposed = np.transpose(known, [2, 3, 0, 1]).reshape(channels * times, 1, height, width)
        filters = model.constant(np.ascontiguousarray(transposed))
    else:
        filters = model.emit("Reshape", [filters, shape])
    found = model.emit("Conv", [_image(model, node), filters], group=channels, **options)
    return _back(model, node, found)


@writer("MaxPool", "AvgPool")
def pool(model: ModelWriter, node: Node) -> str:
    options: dict[str, Any] = _border(node) | {
        "kernel_shape": _spatial(node, "ksize"),
        "strides": _spatial(node, "strides"),
    }
    op = "MaxPool" if node.type == "MaxPool" else "AveragePool"
    return _back(model, node, model.emit(op, [_image(model, node)], **options))


@writer("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def batch_norm(model: ModelWriter, node: Node) -> str:
    if node.op.__dict__.get("is_training"):
        raise Unsupported(
            f"{node.name!r} normalises by the batch: export the graph for inference, made at "
            f"{node.origin}"
        )
    inputs = [_image(model, node), *model.names(node)[1:]]
    epsilon = float(node.op.__dict__["epsilon"])
    return _back(model, node, model.emit("BatchNormalization", inputs, epsilon=epsilon))
