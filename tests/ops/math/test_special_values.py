"""Values at the edge of each dtype: compiled code gives what the NumPy kernels give, of every
elementwise op; and where either could be asked, what is right is written down here."""

import math
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import on_reference_kernels
from thalweg.graph.dtypes import as_dtype
from thalweg.graph.op import REGISTRY
from thalweg.ops.math import special_math
from thalweg.platform import dtype_traits

INF, NAN = math.inf, math.nan
BFLOAT16 = tf.bfloat16.as_numpy_dtype
NARROW = [row.numpy for row in dtype_traits.TABLE if row.is_narrow_float]
FLOATS = [*NARROW, np.float32, np.float64]
INFINITE = [kind for kind in FLOATS if dtype_traits.float_format(kind).has_infinity]
INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]


def special_values(dtype: Any) -> Any:
    """Zeros, ones, limits, infinities, NaN, denormal and huge numbers of a dtype."""
    kind = as_dtype(dtype)
    if kind.is_bool:
        return np.array([False, True])
    if kind.is_integer:
        low, high = int(kind.min), int(kind.max)
        numbers = {0, 1, 2, 3, 7, 100, high, high - 1, high // 2, low, low + 1}
        numbers |= {-1, -2, -3, -7, -100} if low < 0 else set()
        return np.array(sorted(numbers), dtype)
    plain = [0.0, 1.0, 0.1, 0.5, 1.5, 2.5, 3.0, 7.0, 100.0, 1e3, 3e4, INF]
    plain += [1e9, 1e30] if float(kind.max) > 1e30 else []
    plain += [1e50, 1e200, 1e300] if dtype is np.float64 else []
    smallest = np.nextafter(np.asarray(0, dtype), np.asarray(1, dtype))
    most = float(kind.max)
    plain += [most, float(smallest), 4.0 * float(smallest)]
    return np.array([*plain, *(-number for number in plain), NAN]).astype(dtype)


def elementwise_ops() -> dict[str, Any]:
    """Every elementwise op that has a loop form and needs no attributes."""
    result = {}
    for name, kind in sorted(REGISTRY.items()):
        is_ours = kind.__module__.startswith("thalweg.")  # not one that another test made
        if is_ours and getattr(kind, "elementwise", False) and _has_loop_form(kind):
            try:
                result[name] = kind()
            except TypeError:
                continue  # it needs attributes
    return result


def _has_loop_form(kind: Any) -> bool:
    return kind.has("element") or kind.has("loop")


def applied(op: Any, dtype: Any, values: Any) -> list[tuple[str, Any, list[Any]]]:
    """The op at all combinations of the values, if it takes the dtype."""
    count = len(op.parsed.inputs)
    grid = np.meshgrid(*[values] * count, indexing="ij")
    try:
        inputs = [tf.placeholder(dtype, [None]) for _ in grid]
        output = op(*inputs)
    except (TypeError, ValueError):
        return []
    arrays = allowed(op, [part.ravel() for part in grid])
    return [(type(op).__name__, output, list(zip(inputs, arrays, strict=True)))]


def allowed(op: Any, arrays: list[Any]) -> list[Any]:
    """The arguments without those that are an error: zero divisors, negative integer powers."""
    for inside in (..., arrays[-1] != 0, arrays[-1] > 0):
        chosen = [array[inside] for array in arrays]
        try:
            with np.errstate(all="ignore"):
                op.numpy(*chosen)
            return chosen
        except tf.errors.InvalidArgumentError:
            continue
    raise AssertionError(f"{op} takes none of the values")


#: Absolute errors where a formula cancels: 1 + erf x for negative x.
CANCELLED = {"Gelu": 1e-6}


def _narrow_rounding(narrow: Any) -> tuple[float, float]:
    limits = ml_dtypes.finfo(narrow)
    return 2 * float(limits.eps), 1.01 * float(limits.smallest_normal)


#: Relative rounding errors of several operations, and the smallest normal number.
ROUNDING = {
    **{np.dtype(kind): _narrow_rounding(kind) for kind in NARROW},
    np.dtype(np.float32): (1e-5, 1.2e-38),
    np.dtype(np.float64): (1e-11, 2.3e-308),
}


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, np.bool_], ids=lambda d: np.dtype(d).name)
def test_compiled_code_agrees_with_the_kernels(dtype):
    wrong = []
    with tf.Graph().as_default(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = [
            case
            for op in elementwise_ops().values()
            if len(op.parsed.inputs) <= 2
            for case in applied(op, dtype, special_values(dtype))
        ]
        feeds = dict(pair for _, _, pairs in cases for pair in pairs)
        outputs = [output for _, output, _ in cases]
        with tf.Session() as session:
            compiled = session.run(outputs, feeds)
        with on_reference_kernels() as session:
            wanted = session.run(outputs, feeds)
    for (name, _, pairs), one, two in zip(cases, compiled, wanted, strict=True):
        right = agree(np.asarray(one), np.asarray(two), CANCELLED.get(name, 0))
        bad = ~right
        if bad.any():
            place = np.argmax(bad)
            at = [array[place] for _, array in pairs]
            wrong.append(f"{name}{at}: compiled {one[place]!r}, kernel {two[place]!r}")
    assert cases and not wrong, "\n".join(wrong)


def agree(one: Any, two: Any, cancelled: float = 0) -> Any:
    """Where two arrays have the same numbers, floats but for rounding."""
    if one.dtype.kind in "biu":
        return one == two
    a, b = one.astype(np.float64), two.astype(np.float64)
    with np.errstate(all="ignore"):
        relative, smallest = ROUNDING[one.dtype]
        absolute = max(smallest, cancelled)
        near = np.abs(a - b) <= relative * np.abs(b) + absolute
        return (a == b) | (np.isnan(a) & np.isnan(b)) | (near & np.isfinite(a) & np.isfinite(b))


# What is right


def in_all_ways(build: Any, *arrays: Any) -> list[Any]:
    """The value compiled, from the NumPy kernels, and from constants."""
    results = []
    with tf.Graph().as_default(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inputs = [tf.placeholder(array.dtype, [None] * array.ndim) for array in arrays]
        output, folded = build(*inputs), build(*map(tf.constant, arrays))
        feeds = dict(zip(inputs, arrays, strict=True))
        with tf.Session() as session:
            results += session.run([output, folded], feeds)
        with on_reference_kernels() as session:
            results.append(session.run(output, feeds))
    return results


#: x, y, the floor and the whole part of x / y, which is rounded to a float first
QUOTIENTS = [
    (1.0, 0.1, 10.0, 10.0),
    (-0.5, -0.1, 5.0, 5.0),
    (-7.0, 2.0, -4.0, -3.0),
    (1.0, -INF, -0.0, -0.0),
    (INF, 3.0, INF, INF),
    (-INF, -100.0, INF, INF),
    (1.0, 0.0, INF, INF),
    (-7.0, -0.0, INF, INF),
    (0.0, 0.0, NAN, NAN),
    (NAN, 1.0, NAN, NAN),
    (INF, INF, NAN, NAN),
]


@pytest.mark.parametrize("dtype", INFINITE, ids=lambda d: np.dtype(d).name)
def test_quotients_of_floats(dtype):
    x, y, floor, whole = (np.array(column).astype(dtype) for column in zip(*QUOTIENTS, strict=True))
    for build, expected in ((tf.floordiv, floor), (tf.truncatediv, whole)):
        for value in in_all_ways(build, x, y):
            np.testing.assert_array_equal(value.astype(np.float64), expected.astype(np.float64))


def test_quotients_of_narrow_floats_are_rounded_before_the_floor():
    x, y = np.array([29952.0]).astype(BFLOAT16), np.array([1000.0]).astype(BFLOAT16)
    assert [float(value[0]) for value in in_all_ways(tf.floordiv, x, y)] == [30.0] * 3


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: np.dtype(d).name)
def test_means_of_integers(dtype):
    limits = np.iinfo(dtype)
    top = [limits.max, limits.max - 1, limits.max, limits.max // 2]
    rows = [top, [7, 8, 0, 0], [limits.min, limits.min, limits.min, limits.min + 1]]
    if limits.min < 0:
        rows.append([-7, -8, 0, 0])
    x = np.array(rows, dtype)
    wide = np.uint64 if limits.min == 0 else np.int64
    with np.errstate(over="ignore"):
        totals = [int(total) for total in x.sum(1, dtype=wide)]
    wanted = [total // 4 if total > 0 else -(-total // 4) for total in totals]
    for value in in_all_ways(lambda x: tf.reduce_mean(x, 1), x):
        assert value.dtype == dtype
        np.testing.assert_array_equal(value, np.array(wanted, dtype))


def test_means_do_not_overflow_or_round():
    assert in_all_ways(tf.reduce_mean, np.full(3, 200, np.uint8)) == [200] * 3
    assert in_all_ways(tf.reduce_mean, np.full(70_000, 255, np.uint8)) == [255] * 3
    large = np.array([2**53 + 1, 2**53 + 3])
    assert in_all_ways(tf.reduce_mean, large) == [2**53 + 2] * 3


@pytest.mark.parametrize("dtype", INFINITE, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("repeats", [1, 9])
def test_arg_extremes_ignore_nan(dtype, repeats):
    rows = [[NAN, 1, 2, 3], [1, NAN, 3, 2], [1, 2, 3, NAN], [NAN] * 4, [NAN, INF, -INF, NAN]]
    x = np.tile(np.array(rows), (1, repeats)).astype(dtype)
    for axis, transposed in ((1, x), (0, np.ascontiguousarray(x.T))):
        for value in in_all_ways(lambda x, axis=axis: tf.argmax(x, axis), transposed):
            assert value.tolist() == [3, 2, 2, 0, 1]
        for value in in_all_ways(lambda x, axis=axis: tf.argmin(x, axis), transposed):
            assert value.tolist() == [1, 0, 0, 0, 2]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_targets_that_are_no_class_are_not_in_the_top(dtype):
    rows = [[0.1, 0.2, 0.3]] * 4 + [[NAN, 1, 2], [1, INF, 0], [1, -INF, 0]]
    x, targets = np.array(rows, np.float32), np.array([-1, 3, 2, 0, 2, 1, 0], dtype)
    for value in in_all_ways(lambda x, t: tf.nn.in_top_k(x, t, 1), x, targets):
        assert value.tolist() == [False, False, True, False, False, False, False]


@pytest.mark.parametrize("source", [*FLOATS, *INTEGERS], ids=lambda d: np.dtype(d).name)
def test_saturated_casts_stay_in_range(source):
    values = special_values(source)
    targets = [as_dtype(kind) for kind in [*FLOATS, *INTEGERS]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = in_all_ways_listed(
            lambda x: [tf.saturate_cast(x, target) for target in targets], values
        )
    for target, *ways in zip(targets, *found, strict=True):
        for value in ways:
            check_saturated(values, value, as_dtype(source), target)


def in_all_ways_listed(build: Any, array: Any) -> list[Any]:
    """As `in_all_ways`, of several outputs."""
    with tf.Graph().as_default():
        x = tf.placeholder(array.dtype, [None])
        outputs, folded = build(x), build(tf.constant(array))
        with tf.Session() as session:
            results = [session.run(outputs, {x: array}), session.run(folded)]
        with on_reference_kernels() as session:
            return [*results, session.run(outputs, {x: array})]


def check_saturated(values: Any, results: Any, source: Any, target: Any) -> None:
    """Numbers are the nearest of those in the range; Python's compare exactly."""
    low = max(as_plain(source.min), as_plain(target.min))
    high = min(as_plain(source.max), as_plain(target.max))
    plain = int if target.is_integer else float
    for given, result in zip(values.tolist(), results.tolist(), strict=True):
        if isinstance(given, float) and math.isnan(given):
            continue  # no number: what machines make of it
        exact = min(max(given, low), high)
        spacing = abs(exact) * max(epsilon(source), epsilon(target))
        assert as_plain(target.min) <= result <= as_plain(target.max)
        assert abs(plain(result) - exact) <= spacing + (1 if target.is_integer else 0.001)


def epsilon(dtype: Any) -> float:
    return float(ml_dtypes.finfo(dtype.as_numpy_dtype).eps) if dtype.is_floating else 0.0


def as_plain(number: Any) -> Any:
    return int(number) if isinstance(number, int | np.integer) else float(number)


@pytest.mark.parametrize("source", INFINITE, ids=lambda d: np.dtype(d).name)
def test_casts_beyond_the_range_of_64_bits(source):
    x = np.array([INF, -INF, NAN, -1.0]).astype(source)
    for value in in_all_ways(lambda x: tf.cast(x, tf.uint64), x):
        assert value.tolist() == [2**63, 2**63, 2**63, 2**64 - 1]
    for value in in_all_ways(lambda x: tf.cast(x, tf.int64), x):
        assert value.tolist() == [-(2**63), -(2**63), -(2**63), -1]


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_functions_do_not_overflow(dtype):
    x = np.array([-100, -1000 + 1j, 100, 1000 - 2j, complex(-INF, 3), complex(INF, 3)], dtype)
    for value in in_all_ways(tf.sigmoid, x):
        np.testing.assert_allclose(value, [0, 0, 1, 1, 0, 1], atol=1e-30)
    for value in in_all_ways(tf.tanh, x):
        np.testing.assert_allclose(value, [-1, -1, 1, 1, -1, 1], atol=1e-30)
    large = np.array([complex(INF, 0), complex(1, INF), complex(-INF, INF), 1e30])
    for value in in_all_ways(tf.rsqrt, large.astype(dtype)):
        np.testing.assert_allclose(value, [0, 0, 0, 1e-15], rtol=1e-6)
    for value in in_all_ways(lambda x: tf.cast(x, tf.bool), np.array([1j, 1, 0], dtype)):
        assert value.tolist() == [False, True, False]


#: x with its sine, cosine and tangent to the last digit
ANGLES = [
    (1e22, -0.8522008497671888, 0.523214785395139, -1.6287782256068988),
    (1e50, -0.4805001434937588, 0.8769946477045781, -0.5478940433119025),
    (-1e200, 0.6439687185395058, 0.7650518214752429, 0.8417321552123704),
    (1e300, -0.8178819121159085, -0.5753861119575491, 1.4214488238747245),
    (1.7976931348623157e308, 0.004961954789184062, -0.9999876894265599, -0.004962015874444895),
    (5.319372648326541e255, 1.0, -4.687165924254628e-19, -2.133485385753704e18),
    (3.4028234663852886e38, -0.5218765233336585, 0.8530210398303042, -0.6117979498342481),
    (1e20, -0.6452512852657808, 0.7639704044417283, -0.8446024630198843),
    (1048576.0, 0.3304931400217347, 0.943808393901312, 0.350169740126609),
    (-2147483648.0, 0.9713101757929392, 0.23781619457280337, 4.084289455298593),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("repeats", [1, 19])
def test_angles_of_any_size(dtype, repeats):
    limit = float(np.finfo(dtype).max)
    known = [row for row in ANGLES if abs(row[0]) <= limit and float(dtype(row[0])) == row[0]]
    x, *wanted = (np.tile(np.array(column), repeats) for column in zip(*known, strict=True))
    near = np.tile([0.5, -1.0, INF, NAN], repeats)
    mixed = np.concatenate([x, near]).astype(dtype)
    for build, right in zip((tf.sin, tf.cos, tf.tan), wanted, strict=True):
        for value in in_all_ways(build, mixed)[:1]:
            np.testing.assert_allclose(value[: len(x)], right, rtol=4 * np.finfo(dtype).eps)
            assert np.isnan(value[len(x) :]).tolist() == [False, False, True, True] * repeats


SPECIAL = {
    "lgamma": (special_math.lgamma, [[1, 2, 0, -1, INF, NAN]], [0, 0, INF, INF, INF, NAN]),
    "digamma": (special_math.digamma, [[0, -1, INF, NAN]], [NAN, NAN, INF, NAN]),
    "zeta": (
        special_math.zeta,
        [
            [2, 3, 2, 3, 1e9, INF, INF, 2, NAN, 2, 0.5, 1, 2.5],
            [-1.5, -2, -2, 1, 2, 1, 2, INF, 1, NAN, 1, 1, -0.5],
        ],
        [9.379246644989124, NAN, INF, 1.2020569031595942, 0, 1, 0, 0, NAN, NAN, NAN, INF, NAN],
    ),
    "polygamma": (
        special_math.polygamma,
        [[1, 1, 1, 0, 1e9, 0.5], [NAN, INF, 1, 1, 1e9, 1]],
        [NAN, 0, math.pi**2 / 6, -0.5772156649015329, NAN, NAN],
    ),
    "igamma": (
        special_math.igamma,
        [[1e9, 1e18, 1e300, 0, -7, INF, 2, NAN, 1], [1e9, 1e18, 1e300, 0, 0, 3, INF, 1, -1]],
        [0.5000042052208772, 0.5, 0.5, 0, 0, 0, 1, NAN, NAN],
    ),
    "igammac": (
        special_math.igammac,
        [[1e9, 1e18, INF, 2, NAN, 0], [1e9, 1e18, 3, INF, 1, 0]],
        [0.4999957947791228, 0.5, 1, 0, NAN, NAN],
    ),
    "betainc": (
        special_math.betainc,
        [
            [1e18, 1e300, INF, 2, 0, 2, NAN],
            [1e18, 1e300, 2, 1, 1, 3, 1],
            [0.5, 0.5, 1, 0, 0.5, 2, 0.5],
        ],
        [0.5, 0.5, 1, 0, NAN, NAN, NAN],
    ),
    "bessel_i0e": (special_math.bessel_i0e, [[1e308, INF, NAN]], [3.989422804014327e-155, 0, NAN]),
    "bessel_i1e": (
        special_math.bessel_i1e,
        [[1e-300, -1e308, 0]],
        [5e-301, -3.989422804014327e-155, 0],
    ),
    "erf": (special_math.erf, [[INF, -INF, NAN, 1e300]], [1, -1, NAN, 1]),
    "erfc": (special_math.erfc, [[INF, -INF, NAN, 1e300]], [0, 2, NAN, 0]),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_special_functions_at_the_edge(name):
    function, arguments, expected = SPECIAL[name]
    with np.errstate(all="ignore"):
        actual = function(*(np.array(column, np.float64) for column in arguments))
    np.testing.assert_allclose(actual, expected, rtol=1e-9)


@pytest.mark.parametrize("name", SPECIAL)
def test_special_functions_end_for_all_arguments(name):
    function, arguments, _ = SPECIAL[name]
    values = special_values(np.float64)
    grid = np.meshgrid(*[values] * len(arguments))
    with np.errstate(all="ignore"):
        found = function(*grid)
    assert np.isnan(found[np.any([np.isnan(part) for part in grid], axis=0)]).all()
