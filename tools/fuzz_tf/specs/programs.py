"""Small programs: control flow, TensorArrays, several ops in a row, a few steps of training."""

from __future__ import annotations

import numpy as np

from tools.fuzz_tf.draw import Code, Draw, spec

_BODIES = (
    "tf.tanh({0})",
    "{0} * 0.5 + 1.0",
    "tf.sin({0}) - {0}",
    "tf.nn.softmax({0})",
    "tf.square({0}) * 0.1",
    "tf.sigmoid({0})",
)


def _body(draw: Draw, *names: str) -> str:
    return draw.choice(*_BODIES).format(draw.choice(*names))


@spec("cond", ulps=256)
def _cond(draw: Draw) -> None:
    shape = draw.shape(1, 3, low=1)
    x, y = draw.tensor("float32", shape), draw.tensor("float32", shape)
    p = draw.tensor("bool", ())
    draw.call(p, Code(f"lambda: {_body(draw, x, y)}"), Code(f"lambda: {_body(draw, x, y)}"))


@spec("case", ulps=256)
def _case(draw: Draw) -> None:
    shape = draw.shape(1, 2, low=1)
    x = draw.tensor("float32", shape)
    pairs = [(draw.tensor("bool", ()), Code(f"lambda: {_body(draw, x)}")) for _ in range(2)]
    draw.call(list(pairs), default=Code(f"lambda: {x} + 1.0"))


@spec("switch_case", ulps=256)
def _switch_case(draw: Draw) -> None:
    x = draw.tensor("float32", draw.shape(1, 2, low=1))
    draw.call(draw.ints((), -1, 4, "int32"), [Code(f"lambda: {_body(draw, x)}") for _ in range(3)])


@spec("while_loop", ulps=1024)
def _while_loop(draw: Draw) -> None:
    shape = draw.shape(0, 2, low=1)
    x = draw.tensor("float32", shape, "unit")
    w = draw.tensor("float32", shape, "unit")
    count = draw.integer(0, 4)
    body = draw.choice(
        "tf.tanh({1} * {0})",
        "{0} * 0.5 + {1}",
        "tf.sin({0}) - {1}",
        "{0} * {1} * tf.cast(i + 1, tf.float32)",
    )
    draw.call(
        Code(f"lambda i, a: tf.less(i, {count})"),
        Code(f"lambda i, a: (i + 1, {body.format('a', w)})"),
        [Code("tf.constant(0)"), x],
    )


@spec("map_fn", ulps=256)
def _map_fn(draw: Draw) -> None:
    x = draw.tensor("float32", draw.shape(1, 3, low=0, high=6))
    body = draw.choice("tf.tanh(a)", "tf.reduce_sum(a)", "a * 2.0", "tf.reduce_max(a) + a")
    draw.call(Code(f"lambda a: {body}"), x)


@spec("scan foldl foldr", ulps=1024)
def _scan(draw: Draw) -> None:
    shape = draw.shape(1, 2, low=1, high=6)
    x = draw.tensor("float32", shape, "unit")
    more = {"initializer": draw.tensor("float32", shape[1:])} if draw.chance(0.5) else {}
    body = draw.choice("a + b", "a * b + 1.0", "tf.tanh(a + b)", "tf.maximum(a, b)")
    draw.call(Code(f"lambda a, b: {body}"), x, **more)


@spec("TensorArray", ulps=64)
def _tensor_array(draw: Draw) -> None:
    rows, rest = draw.integer(1, 5), draw.shape(0, 2, low=1, high=4)
    x = draw.tensor("float32", (rows, *rest))
    draw.line(f"ta = tf.TensorArray(tf.float32, size={rows}).unstack({x})")
    if draw.chance(0.5):
        order = draw.rng.permutation(rows).tolist()
        draw.line(f"[ta.gather({order}), ta.size()]")
    else:
        draw.line("ta.concat()" if rest else "ta.stack()")


@spec("TensorArray:write", ulps=64)
def _tensor_array_write(draw: Draw) -> None:
    rows, shape = draw.integer(1, 4), draw.shape(1, 2, low=1, high=4)
    x = draw.tensor("float32", shape)
    draw.line(f"ta = tf.TensorArray(tf.float32, size={draw.choice(0, rows)}, dynamic_size=True)")
    body = f"lambda i, ta: (i + 1, ta.write(i, {x} * tf.cast(i, tf.float32)))"
    draw.line(f"_, ta = tf.while_loop(lambda i, ta: i < {rows}, {body}, [tf.constant(0), ta])")
    draw.line("ta.stack()")


_UNARY = (
    "tf.tanh",
    "tf.sigmoid",
    "tf.square",
    "tf.abs",
    "tf.nn.relu",
    "tf.negative",
    "tf.sin",
    "tf.cos",
    "tf.nn.softplus",
    "tf.identity",
    "tf.zeros_like",
)
_BINARY = (
    "{} + {}",
    "{} * {}",
    "{} - {}",
    "tf.maximum({}, {})",
    "tf.minimum({}, {})",
    "tf.squared_difference({}, {})",
    "{} / (1.5 + tf.square({}))",
)


class _Program:
    """Tensors made so far, with their shapes, and the lines that make them."""

    def __init__(self, draw: Draw, dtype: str) -> None:
        self.draw = draw
        self.dtype = dtype
        self.made: list[tuple[str, tuple[int, ...]]] = []

    def source(self) -> None:
        """An input."""
        shape = self.draw.shape(1, 3, low=1, high=9)
        self.made.append((self.draw.tensor(self.dtype, shape, "unit"), shape))

    def pick(self) -> tuple[str, tuple[int, ...]]:
        """A tensor made before, a late one more often."""
        late = self.made[-3:]
        return self.draw.choice(*late, *self.made)

    def add(self, text: str, shape: tuple[int, ...]) -> None:
        """A line, and the tensor it makes."""
        name = f"t{len(self.made)}"
        self.draw.line(f"{name} = {text}")
        self.made.append((name, shape))

    def unary(self) -> None:
        """A function of each element."""
        name, shape = self.pick()
        self.add(f"{self.draw.choice(*_UNARY)}({name})", shape)

    def binary(self) -> None:
        """Of two tensors that broadcast, if there are two."""
        name, shape = self.pick()
        fitting = [m for m in self.made if _broadcast(m[1], shape) is not None]
        other, other_shape = self.draw.choice(*fitting)
        both = _broadcast(other_shape, shape)
        assert both is not None
        self.add(self.draw.choice(*_BINARY).format(name, other), both)

    def reduction(self) -> None:
        """Over an axis that stays."""
        name, shape = self.pick()
        if not shape:
            return
        axis = self.draw.integer(0, len(shape) - 1)
        kind = self.draw.choice("sum", "mean", "max", "min", "logsumexp")
        self.add(
            f"tf.reduce_{kind}({name}, {axis}, keepdims=True)",
            (*shape[:axis], 1, *shape[axis + 1 :]),
        )

    def softmax(self) -> None:
        """Over the last axis."""
        name, shape = self.pick()
        if shape:
            self.add(f"tf.nn.{self.draw.choice('softmax', 'log_softmax')}({name})", shape)

    def product(self) -> None:
        """Of a matrix with itself."""
        name, shape = self.pick()
        if len(shape) >= 2:
            side = self.draw.choice("a", "b")
            n = shape[-1] if side == "a" else shape[-2]
            self.add(f"tf.matmul({name}, {name}, transpose_{side}=True)", (*shape[:-2], n, n))

    def transposed(self) -> None:
        """Axes in another order."""
        name, shape = self.pick()
        order = self.draw.rng.permutation(len(shape)).tolist()
        self.add(f"tf.transpose({name}, {order})", tuple(shape[i] for i in order))

    def reshaped(self) -> None:
        """Flat."""
        name, shape = self.pick()
        self.add(f"tf.reshape({name}, [-1])", (int(np.prod(shape)),))

    def joined(self) -> None:
        """Twice along an axis."""
        name, shape = self.pick()
        if shape:
            axis = self.draw.integer(0, len(shape) - 1)
            self.add(
                f"tf.concat([{name}, {name} * 2.0], {axis})",
                (*shape[:axis], 2 * shape[axis], *shape[axis + 1 :]),
            )

    def sliced(self) -> None:
        """Every second one of the first axis, or the first."""
        name, shape = self.pick()
        if shape and shape[0]:
            self.add(
                *self.draw.choice(
                    (f"{name}[::2]", (-(-shape[0] // 2), *shape[1:])),
                    (f"{name}[0]", shape[1:]),
                    (f"{name}[::-1]", shape),
                )
            )

    def scanned(self) -> None:
        """A running sum."""
        name, shape = self.pick()
        if shape:
            axis, reverse = self.draw.integer(0, len(shape) - 1), self.draw.chance(0.5)
            self.add(f"tf.cumsum({name}, {axis}, reverse={reverse})", shape)

    def padded(self) -> None:
        """With a border."""
        name, shape = self.pick()
        pads = [[self.draw.integer(0, 1), self.draw.integer(0, 1)] for _ in shape]
        if shape:
            self.add(
                f"tf.pad({name}, {pads})",
                tuple(n + a + b for n, (a, b) in zip(shape, pads, strict=True)),
            )

    def gathered(self) -> None:
        """Rows by number."""
        name, shape = self.pick()
        if shape:
            rows = [self.draw.integer(0, shape[0] - 1) for _ in range(self.draw.integer(1, 4))]
            self.add(f"tf.gather({name}, {rows})", (len(rows), *shape[1:]))

    def chosen(self) -> None:
        """By the sign of something."""
        name, shape = self.pick()
        self.add(f"tf.where({name} > 0.25, {name}, tf.square({name}))", shape)


def _broadcast(one: tuple[int, ...], two: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        return np.broadcast_shapes(one, two)
    except ValueError:
        return None


_STEPS = (
    _Program.unary,
    _Program.unary,
    _Program.binary,
    _Program.binary,
    _Program.reduction,
    _Program.softmax,
    _Program.product,
    _Program.transposed,
    _Program.reshaped,
    _Program.joined,
    _Program.sliced,
    _Program.scanned,
    _Program.padded,
    _Program.gathered,
    _Program.chosen,
)


def _write(draw: Draw, least: int, most: int) -> None:
    program = _Program(draw, draw.choice("float32", "float32", "float64"))
    for _ in range(draw.integer(1, 3)):
        program.source()
    for _ in range(draw.integer(least, most)):
        if max(int(np.prod(shape)) for _, shape in program.made) > 2000:
            break
        draw.choice(*_STEPS)(program)
    draw.line("[" + ", ".join(name for name, _ in program.made[-2:]) + "]")


@spec("program:short program:brief program:small program:tiny program:other", ulps=1 << 12)
def _short(draw: Draw) -> None:
    _write(draw, 2, 6)


@spec("program:long program:longer program:longest", ulps=1 << 14)
def _long(draw: Draw) -> None:
    _write(draw, 8, 16)


def _optimizer(draw: Draw, name: str) -> str:
    rate = draw.number(0.01, 0.5)
    one, two = (f"l{i}_regularization_strength={draw.number(0, 0.1)}" for i in (1, 2))
    more = {
        "Momentum": f"{rate}, {draw.number(0.1, 0.9)}, use_nesterov={draw.chance(0.5)}",
        "RMSProp": f"{rate}, momentum={draw.number(0, 0.9)}, centered={draw.chance(0.5)}",
        "Ftrl": f"{rate}, {one}, {two}",
        "ProximalGradientDescent": f"{rate}, {one}, {two}",
        "ProximalAdagrad": f"{rate}, {one}",
        "AdagradDA": f"{rate}, tf.train.get_or_create_global_step()",
    }
    return f"tf.train.{name}Optimizer({more.get(name, rate)})"


_OPTIMIZERS = (
    "GradientDescent",
    "Momentum",
    "Adam",
    "Adagrad",
    "Adadelta",
    "RMSProp",
    "Ftrl",
    "ProximalGradientDescent",
    "ProximalAdagrad",
    "AdagradDA",
)


@spec(" ".join(f"train.{name}Optimizer" for name in _OPTIMIZERS), ulps=1 << 14, gradient=False)
def _training(draw: Draw) -> None:
    name = draw.function.removeprefix("train.").removesuffix("Optimizer")
    n, k, m = draw.integer(1, 5), draw.integer(1, 5), draw.integer(1, 4)
    x, w, b = (
        draw.tensor("float32", (n, k), "unit"),
        draw.tensor("float32", (k, m), "unit"),
        draw.tensor("float32", (m,), "unit"),
    )
    target = draw.tensor("float32", (n, m), "unit")
    resource = draw.chance(0.5)
    for variable, start, shape in (("w", w, [k, m]), ("b", b, [m])):
        given = f"initializer=tf.ensure_shape({start}, {shape}), use_resource={resource}"
        draw.line(f"{variable} = tf.get_variable('{variable}', {given})")
    inner = draw.choice(
        "tf.matmul({x}, w) + b", "tf.tanh(tf.matmul({x}, w) + b)", "tf.gather(w, [0, 0]) * 2.0 + b"
    ).format(x=x)
    target = target if "gather" not in inner else "0.5"
    draw.line(f"loss = tf.reduce_mean(tf.square({inner} - {target}))")
    more = ", global_step=tf.train.get_or_create_global_step()" if name == "AdagradDA" else ""
    draw.line(f"steps = [{_optimizer(draw, name)}.minimize(loss{more})] * {draw.integer(1, 4)}")
    draw.line("[w, b]")


@spec("train.ExponentialMovingAverage", ulps=256, gradient=False)
def _average(draw: Draw) -> None:
    draw.line(
        f"v = tf.Variable({draw.tensor('float32', (3,))}, validate_shape=True)".replace(
            "x0", "tf.ensure_shape(x0, [3])"
        )
    )
    draw.line(
        f"ema = tf.train.ExponentialMovingAverage({draw.number(0.5, 0.99)}, zero_debias=False)"
    )
    draw.line("with tf.control_dependencies([tf.assign_add(v, [1.0, 2.0, 3.0])]):")
    draw.line("    update = ema.apply([v])")
    draw.line(f"steps = [update] * {draw.integer(1, 3)}")
    draw.line("[ema.average(v)]")


@spec("custom_gradient", ulps=64)
def _custom_gradient(draw: Draw) -> None:
    draw.line("def square(x): return x * x, lambda dy: dy * 3.0")
    draw.line(f"tf.custom_gradient(square)({draw.tensor('float32', draw.shape())})")
