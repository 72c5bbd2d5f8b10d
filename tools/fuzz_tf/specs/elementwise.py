"""Functions of single elements: mathematics, comparisons, logic, bits, casts."""

from __future__ import annotations

from collections.abc import Callable

from tools.fuzz_tf import values
from tools.fuzz_tf.draw import Code, Draw, spec

_FILLS = ("normal", "normal", "special", "wide", "unit", "positive", "ties")


def unary(dtypes: str, fills: tuple[str, ...] = _FILLS) -> Callable[[Draw], None]:
    """A function of one tensor."""

    def make(draw: Draw) -> None:
        dtype = _dtype(draw, dtypes)
        draw.call(draw.tensor(dtype, draw.shape(), draw.choice(*fills)))

    return make


def binary(dtypes: str, fills: tuple[str, ...] = _FILLS) -> Callable[[Draw], None]:
    """A function of two tensors that broadcast."""

    def make(draw: Draw) -> None:
        dtype = _dtype(draw, dtypes)
        one, two = draw.broadcast_pair()
        draw.call(*(draw.tensor(dtype, shape, draw.choice(*fills)) for shape in (one, two)))

    return make


def _dtype(draw: Draw, dtypes: str) -> str:
    if draw.chance(0.03):
        return draw.choice(*values.FLOATS, *values.INTS, *values.COMPLEX, "bool")
    groups = {
        "f": draw.floating(),
        "i": draw.choice(*values.INTS),
        "c": draw.choice(*values.COMPLEX),
        "b": "bool",
        "s": "string",
    }
    return groups[draw.choice(*dtypes)]


spec("abs negative square sign", ulps=8, scaled=False)(unary("ffi"))
spec(
    "sqrt rsqrt exp expm1 log log1p sin cos tan tanh sigmoid sinh cosh asin acos atan asinh acosh"
    " atanh math.reciprocal",
    ulps=32,
    scaled=False,
)(unary("fffc", ("normal", "unit", "positive", "ties", "special")))
# Where lgamma and digamma are zero no digit is certain.
spec("lgamma digamma", ulps=64)(unary("f", ("normal", "unit", "positive", "special")))
spec("erf erfc", ulps=64, scaled=False)(unary("f", ("normal", "unit", "positive", "special")))
spec("floor ceil rint round is_nan is_inf is_finite", ulps=1, scaled=False)(unary("f"))
spec("nn.relu nn.relu6", ulps=4, scaled=False)(unary("ffi"))
spec(
    "nn.elu nn.selu nn.softplus nn.softsign nn.leaky_relu nn.swish log_sigmoid",
    ulps=64,
    scaled=False,
)(unary("f", ("normal", "unit", "positive", "ties", "special")))
spec("math.bessel_i0 math.bessel_i1 math.bessel_i0e math.bessel_i1e", ulps=256, scaled=False)(
    unary("f", ("normal", "unit", "positive"))
)
spec("nn.crelu")(unary("f"))
spec("logical_not")(unary("b"))
spec("bitwise.invert")(unary("i"))
spec("real imag conj angle")(unary("ccf", ("normal", "unit", "ties")))
spec("zeros_like ones_like identity stop_gradient size rank shape")(unary("ficbs"))
spec("is_non_decreasing is_strictly_increasing")(unary("fi", ("normal", "ties")))
spec("nn.l2_loss")(unary("f", ("normal", "unit")))
spec("nn.zero_fraction math.zero_fraction count_nonzero")(unary("fib", ("ties", "unit")))
spec("guarantee_const")(unary("fi"))
spec("check_numerics")(
    lambda draw: draw.call(
        draw.tensor(draw.floating(), draw.shape(), draw.choice("normal", "special")), "found it"
    )
)

spec("add subtract multiply maximum minimum squared_difference", ulps=8, scaled=False)(
    binary("fffic")
)
spec("truediv divide", ulps=8, scaled=False)(binary("ffi", ("normal", "nonzero", "special")))
spec("realdiv", ulps=8, scaled=False)(binary("f", ("normal", "nonzero", "special")))
spec("div math.divide_no_nan", ulps=8, scaled=False)(binary("f", ("normal", "nonzero", "special")))
spec("floordiv floormod mod truncatediv truncatemod floor_div", ulps=8, scaled=False)(
    binary("fi", ("normal", "nonzero", "ties"))
)
spec("equal not_equal")(binary("ficbs", ("normal", "ties", "special")))
spec("less less_equal greater greater_equal")(binary("fi", ("normal", "ties", "special")))
spec("logical_and logical_or math.logical_xor")(binary("b"))
spec("bitwise.bitwise_and bitwise.bitwise_or bitwise.bitwise_xor")(
    binary("i", ("normal", "special"))
)
spec("atan2", ulps=64, scaled=False)(binary("f", ("normal", "ties", "unit")))
spec("math.xlogy math.xdivy math.multiply_no_nan", ulps=64, scaled=False)(
    binary("f", ("ties", "positive", "special"))
)
spec("math.nextafter", ulps=1, scaled=False)(binary("f", ("normal", "ties")))
spec("igamma igammac", ulps=4000)(binary("f", ("positive",)))
spec("zeta", ulps=2000)(binary("f", ("1.1..6",)))
spec("approximate_equal")(binary("f", ("ties",)))


@spec("pow", ulps=128, scaled=False)
def _pow(draw: Draw) -> None:
    dtype = _dtype(draw, "ffic")
    one, two = draw.broadcast_pair()
    base = draw.tensor(dtype, one, draw.choice("positive", "ties", "normal"))
    exponent = "0..4" if dtype in values.INTS else draw.choice("unit", "ties", "normal")
    draw.call(base, draw.tensor(dtype, two, exponent))


@spec("betainc", ulps=4000)
def _betainc(draw: Draw) -> None:
    shape, dtype = draw.shape(), draw.floating(narrow=False)
    draw.call(*(draw.tensor(dtype, shape, fill) for fill in ("positive", "positive", "0..1")))


@spec("bitwise.left_shift bitwise.right_shift")
def _shift(draw: Draw) -> None:
    dtype = draw.choice(*values.INTS)
    one, two = draw.broadcast_pair()
    bits = values.numpy_dtype(dtype).itemsize * 8
    draw.call(draw.tensor(dtype, one, "normal"), draw.tensor(dtype, two, f"0..{bits - 1}"))


@spec("cast", ulps=2, scaled=False)
def _cast(draw: Draw) -> None:
    source = draw.choice(*values.FLOATS, *values.INTS, *values.COMPLEX, "bool")
    target = draw.choice(*values.FLOATS, *values.INTS, *values.COMPLEX, "bool")
    fill = draw.choice("normal", "ties", "positive", "special")
    draw.call(draw.tensor(source, draw.shape(), fill), Code(f"tf.{target}"))


@spec("saturate_cast", ulps=2, scaled=False)
def _saturate(draw: Draw) -> None:
    source, target = draw.numeric(), draw.numeric()
    draw.call(
        draw.tensor(source, draw.shape(), draw.choice("normal", "special")), Code(f"tf.{target}")
    )


@spec("bitcast")
def _bitcast(draw: Draw) -> None:
    source, target = draw.numeric(), draw.numeric()
    shape = draw.shape(1)
    draw.call(
        draw.tensor(source, (*shape, draw.choice(1, 2, 4, 8)), "normal"), Code(f"tf.{target}")
    )


@spec("complex")
def _complex(draw: Draw) -> None:
    dtype = draw.floating(narrow=False)
    one, two = draw.broadcast_pair()
    draw.call(draw.tensor(dtype, one, "special"), draw.tensor(dtype, two, "normal"))


@spec("clip_by_value", ulps=4)
def _clip(draw: Draw) -> None:
    dtype = draw.numeric()
    x = draw.tensor(dtype, draw.shape(), draw.choice("normal", "special"))
    draw.call(x, draw.tensor(dtype, (), "0..2"), draw.tensor(dtype, (), "3..6"))


@spec("where")
def _where(draw: Draw) -> None:
    dtype, shape = draw.anything(), draw.shape()
    if draw.chance(0.3):
        draw.call(draw.tensor(draw.choice("bool", "float32", "int32"), shape, "unit"))
        return
    condition = draw.tensor("bool", shape[:1] if shape and draw.chance(0.3) else shape)
    draw.call(condition, draw.tensor(dtype, shape), draw.tensor(dtype, shape))


@spec("where_v2")
def _where_v2(draw: Draw) -> None:
    dtype = draw.anything()
    one, two = draw.broadcast_pair()
    condition = draw.tensor("bool", draw.choice(one, two, ()))
    draw.call(condition, draw.tensor(dtype, one), draw.tensor(dtype, two))


@spec("add_n accumulate_n")
def _add_n(draw: Draw) -> None:
    dtype, shape = draw.numeric(), draw.shape()
    draw.call([draw.tensor(dtype, shape) for _ in range(draw.integer(1, 5))])


@spec("scalar_mul")
def _scalar_mul(draw: Draw) -> None:
    dtype = draw.numeric()
    draw.call(draw.tensor(dtype, ()), draw.tensor(dtype, draw.shape()))


@spec("math.polyval")
def _polyval(draw: Draw) -> None:
    dtype = draw.floating()
    count = draw.integer(1, 4)
    one, two = draw.broadcast_pair()
    draw.call([draw.tensor(dtype, one) for _ in range(count)], draw.tensor(dtype, two))


@spec("polygamma", ulps=4000)
def _polygamma(draw: Draw) -> None:
    dtype, shape = draw.floating(narrow=False), draw.shape()
    draw.call(
        draw.given(draw.rng.integers(0, 4, shape), dtype), draw.tensor(dtype, shape, "positive")
    )


@spec("nn.gelu", ulps=64)
def _gelu(draw: Draw) -> None:
    draw.call(draw.tensor(draw.floating(), draw.shape()), approximate=draw.chance(0.5))
