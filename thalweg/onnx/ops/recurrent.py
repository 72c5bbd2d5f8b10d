"""RNN, GRU and LSTM: one or two directions over a sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thalweg.control.functional import scan
from thalweg.graph.node import Tensor
from thalweg.onnx.registry import NodeView, operator
from thalweg.onnx.values import like, shape_vector, sizes_of
from thalweg.ops.arrays import joining, splitting, transposing
from thalweg.ops.core import choosing, filling, shaping
from thalweg.ops.linalg import matmul as products
from thalweg.ops.math import arithmetic, compare, transcendental
from thalweg.ops.nn import activation

Function = Callable[[Tensor], Tensor]


def _function(name: str, alpha: Any, beta: Any) -> Function:
    """An activation by its name, with its parameters."""
    known: dict[str, Function] = {
        "Relu": activation.relu,
        "Tanh": transcendental.tanh,
        "Sigmoid": transcendental.sigmoid,
        "Softsign": activation.softsign,
        "Softplus": activation.softplus,
        "Affine": lambda x: like(alpha, x) * x + like(beta, x),
        "ScaledTanh": lambda x: like(alpha, x) * transcendental.tanh(like(beta, x) * x),
        "LeakyRelu": lambda x: choosing.where_v2(x < like(0, x), like(alpha, x) * x, x),
        "ThresholdedRelu": lambda x: choosing.where_v2(
            x >= like(alpha, x), x, filling.zeros_like(x)
        ),
        "HardSigmoid": lambda x: arithmetic.minimum(
            arithmetic.maximum(like(alpha, x) * x + like(beta, x), like(0, x)), like(1, x)
        ),
        "Elu": lambda x: choosing.where_v2(
            x < like(0, x), like(alpha, x) * (transcendental.exp(x) - like(1, x)), x
        ),
    }
    return known[name]


_DEFAULTS = {"LeakyRelu": 0.01, "ThresholdedRelu": 1.0, "HardSigmoid": 0.2, "Elu": 1.0}


class Layer:
    """What the three kinds of layers share: directions, activations, weights, lengths."""

    def __init__(self, node: NodeView, usual: Sequence[str]) -> None:
        self.node = node
        self.direction = node.get("direction", "forward")
        self.count = 2 if self.direction == "bidirectional" else 1
        names = list(node.get("activations") or list(usual) * self.count)
        alphas = iter(node.get("activation_alpha") or ())
        betas = iter(node.get("activation_beta") or ())
        made = [_function(n, next(alphas, _DEFAULTS.get(n, 1.0)), next(betas, 0.5)) for n in names]
        per = len(usual)
        self.functions = [made[index * per : (index + 1) * per] for index in range(self.count)]
        clip = node.get("clip")
        self.clip = None if clip is None else float(clip)

    def clipped(self, x: Tensor) -> Tensor:
        """A gate before its activation, in bounds if there are some."""
        if self.clip is None:
            return x
        low, high = like(-self.clip, x), like(self.clip, x)
        return arithmetic.minimum(arithmetic.maximum(x, low), high)

    def run(
        self, x: Tensor, hidden: int, states: Sequence[Any], lengths: Any, cell: Any
    ) -> tuple[Tensor, list[Tensor]]:
        """All outputs [time, directions, batch, hidden], and the last states of each direction."""
        is_batch_first = bool(self.node.get("layout", 0))
        if is_batch_first:
            x = transposing.transpose(x, [1, 0, 2])
        _, batch, _ = sizes_of(x)
        outputs: list[Tensor] = []
        ends: list[list[Tensor]] = []
        for index in range(self.count):
            starts = [self._start(each, index, batch, hidden, x, is_batch_first) for each in states]
            reverse = self.direction == "reverse" or index == 1
            found, last = self._pass(x, starts, lengths, reverse, index, cell)
            outputs.append(found)
            ends.append(last)
        whole = joining.stack(outputs, 1)
        last = [joining.stack([each[k] for each in ends], 0) for k in range(len(states))]
        if is_batch_first:
            whole = transposing.transpose(whole, [2, 0, 1, 3])
            last = [transposing.transpose(each, [1, 0, 2]) for each in last]
        return whole, last

    def _start(
        self, given: Any, place: int, batch: Any, hidden: int, x: Tensor, is_batch_first: bool
    ) -> Tensor:
        if given is None:
            return filling.zeros(shape_vector([batch, hidden]), x.dtype.base_dtype)
        return given[:, place] if is_batch_first else given[place]

    def _pass(
        self, x: Tensor, starts: list[Tensor], lengths: Any, reverse: bool, place: int, cell: Any
    ) -> tuple[Tensor, list[Tensor]]:
        if reverse:
            x = _reversed(x, lengths)
        times = filling.range(0, shaping.shape(x)[0])

        def step(states: Any, inputs: Any) -> Any:
            at, row = inputs
            old = list(states[:-1])
            new = cell(place, row, old)
            if lengths is None:
                return (*new, new[0])
            going = shaping.expand_dims(compare.less(at, lengths), 1)
            kept = [choosing.where_v2(going, a, b) for a, b in zip(new, old, strict=True)]
            return (*kept, choosing.where_v2(going, new[0], filling.zeros_like(new[0])))

        start = (*starts, filling.zeros_like(starts[0]))
        results = scan(step, (times, x), start)
        outputs = results[-1]
        last = [each[-1] for each in results[:-1]]
        return (_reversed(outputs, lengths) if reverse else outputs), last


def _reversed(x: Tensor, lengths: Any) -> Tensor:
    if lengths is None:
        return transposing.reverse(x, [0])
    return transposing.reverse_sequence(x, lengths, seq_axis=0, batch_axis=1)


def _parts(values: Any, place: int, count: int, axis: int = 0) -> list[Any]:
    """The parts of one direction's weights, one for each gate."""
    if values is None:
        return [None] * count
    return list(splitting.split(values[place], count, axis)) if count > 1 else [values[place]]


def _gate(row: Tensor, hidden: Any, w: Tensor, r: Any, wb: Any, rb: Any) -> Tensor:
    result = products.matmul(row, w, transpose_b=True)
    if hidden is not None:
        result = result + products.matmul(hidden, r, transpose_b=True)
    for bias in (wb, rb):
        if bias is not None:
            result = result + bias
    return result


def _hidden(node: NodeView, r: Tensor) -> int:
    size = node.get("hidden_size") or r.shape.as_list()[-1]
    if size is None:
        raise node.unsupported("hidden_size must be known")
    return int(size)


@operator("RNN")
def rnn(
    node: NodeView,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Any = None,
    lengths: Any = None,
    h: Any = None,
) -> Any:
    layer = Layer(node, ["Tanh"])

    def cell(place: int, row: Tensor, states: list[Tensor]) -> list[Tensor]:
        wb, rb = _parts(b, place, 2)
        gate = _gate(row, states[0], w[place], r[place], wb, rb)
        return [layer.functions[place][0](layer.clipped(gate))]

    outputs, (last,) = layer.run(x, _hidden(node, r), [h], lengths, cell)
    return outputs, last


@operator("GRU")
def gru(
    node: NodeView,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Any = None,
    lengths: Any = None,
    h: Any = None,
) -> Any:
    layer = Layer(node, ["Sigmoid", "Tanh"])
    is_linear_first = bool(node.get("linear_before_reset", 0))

    def cell(place: int, row: Tensor, states: list[Tensor]) -> list[Tensor]:
        f, g = layer.functions[place]
        wz, wr, wh = _parts(w, place, 3)
        rz, rr, rh = _parts(r, place, 3)
        wbz, wbr, wbh, rbz, rbr, rbh = _parts(b, place, 6)
        (old,) = states
        update = f(layer.clipped(_gate(row, old, wz, rz, wbz, rbz)))
        reset = f(layer.clipped(_gate(row, old, wr, rr, wbr, rbr)))
        if is_linear_first:
            inner = products.matmul(old, rh, transpose_b=True)
            inner = inner if rbh is None else inner + rbh
            total = _gate(row, None, wh, None, wbh, None) + reset * inner
        else:
            total = _gate(row, reset * old, wh, rh, wbh, rbh)
        new = g(layer.clipped(total))
        return [(like(1, update) - update) * new + update * old]

    outputs, (last,) = layer.run(x, _hidden(node, r), [h], lengths, cell)
    return outputs, last


@operator("LSTM")
def lstm(
    node: NodeView,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Any = None,
    lengths: Any = None,
    h: Any = None,
    c: Any = None,
    p: Any = None,
) -> Any:
    layer = Layer(node, ["Sigmoid", "Tanh", "Tanh"])
    couples = bool(node.get("input_forget", 0))

    def cell(place: int, row: Tensor, states: list[Tensor]) -> list[Tensor]:
        f, g, last = layer.functions[place]
        old, memory = states
        weights, inner = _parts(w, place, 4), _parts(r, place, 4)
        biases, peep = _parts(b, place, 8), _parts(p, place, 3)
        gates = [_gate(row, old, weights[k], inner[k], biases[k], biases[4 + k]) for k in range(4)]
        input_, output, forget, new = gates

        def opened(gate: Tensor, weight: Any, value: Tensor) -> Tensor:
            seen = gate if weight is None else gate + weight * value
            return f(layer.clipped(seen))

        enter = opened(input_, peep[0], memory)
        kept = like(1, enter) - enter if couples else opened(forget, peep[2], memory)
        after = kept * memory + enter * g(layer.clipped(new))
        leave = opened(output, peep[1], after)
        return [leave * last(after), after]

    outputs, (hidden, memory) = layer.run(x, _hidden(node, r), [h, c], lengths, cell)
    return outputs, hidden, memory
