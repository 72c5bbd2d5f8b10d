"""The numeric test of an op: `check(build, *arrays)`.

It compares the inferred shape and dtype with the actual ones (for static, partly known and unknown
input shapes), the value with NumPy if a formula is given, loop lowerings and CUDA kernels on an
emulated GPU with the NumPy kernels (the latter for one row per op and dtype; for all with
THALWEG_SOAK=1), the graph imported from a GraphDef with the exported one, and gradients and
gradients of gradients with central differences in float64; gradients also for unknown shapes.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import thalweg as tf
from tests.codegen.cuda.sessions import emulated_kernels
from tests.codegen.cuda.sessions import run as run_emulated
from tests.op_coverage import gradient_check
from thalweg.ir.interpret import run_loop
from thalweg.ir.loop import Operand
from thalweg.platform.dtype_traits import TABLE, is_float, is_narrow_float
from thalweg.runtime import engine

#: Floats of fewer than 32 bits, which are computed as float32 and rounded once.
NARROW_FLOATS = [row.numpy for row in TABLE if row.is_narrow_float]

_STEP = 1e-5


def check(
    build: Callable[..., Any],
    *arrays: Any,
    expect: Callable[..., Any] | Any = None,
    gradient: bool | Sequence[int] = True,
    second: bool = True,
    single: bool = False,
    step: float = 0.5,
    rtol: float = 1e-4,
    atol: float = 1e-6,
) -> None:
    """Check an op. `build` takes one tensor per array; `gradient` may list the inputs to check.

    `single` keeps float32 in the gradient check, for linear ops that take nothing wider: for linear
    functions (and quadratic ones within a `step`), differences over long steps are exact.
    """
    values = [np.asarray(a) for a in arrays]
    results = check_inference(build, values)
    check_lowerings(build, values)
    check_on_emulated_gpu(build, values, max(rtol, 1e-4), max(atol, 1e-5))
    check_round_trip(build, values, results)
    if expect is not None:
        expected = expect(*values) if callable(expect) else expect
        expected = list(expected) if isinstance(expected, list | tuple) else [expected]
        assert len(expected) == len(results)
        for actual, right in zip(results, expected, strict=True):
            assert_close(actual, right, rtol, atol)
    if gradient is not False:
        which = range(len(values)) if gradient is True else gradient
        rtol, atol = (1e-3, 1e-3) if single else (max(rtol, 1e-4), max(atol, 1e-5))
        found = check_gradient(build, values, list(which), second, rtol, atol, single, step)
        check_gradient_of_unknown(build, values, list(which), found, single)


def assert_close(actual: Any, wanted: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Assert equal shapes and equal values, within a tolerance for floats."""
    actual, wanted = np.asarray(actual), np.asarray(wanted)
    assert actual.shape == wanted.shape, f"shape {actual.shape}, expected {wanted.shape}"
    if actual.dtype.kind in "biuOSU":
        np.testing.assert_array_equal(actual, wanted)
    else:
        wide = complex if np.iscomplexobj(actual) else float
        np.testing.assert_allclose(actual.astype(wide), wanted.astype(wide), rtol, atol)


def rounding(dtype: Any) -> float:
    """The relative error of one rounding to a float."""
    return float(ml_dtypes.finfo(dtype).eps) / 2


def check_inference(build: Callable[..., Any], values: list[Any]) -> list[Any]:
    """Run with known, partly known and unknown shapes: equal values, correct static shapes."""
    results: list[list[Any]] = []
    for shape_of in (lambda v: v.shape, lambda v: (None,) * v.ndim, lambda v: None):
        with tf.Graph().as_default(), tf.Session() as session:
            inputs = [tf.placeholder(v.dtype, shape_of(v)) for v in values]
            outputs = _flat(build(*inputs))
            fetched = session.run(outputs, dict(zip(inputs, values, strict=True)))
            for tensor, value in zip(outputs, fetched, strict=True):
                _check_static(tensor, value)
            results.append(fetched)
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert_close(one, two)
    return results[0]


def _check_static(tensor: Any, value: Any) -> None:
    assert tensor.shape.is_compatible_with(np.shape(value)), (
        f"{tensor}: inferred {tensor.shape}, got {np.shape(value)}"
    )
    actual = tf.as_dtype(np.asarray(value).dtype)
    assert actual == tensor.dtype.base_dtype, f"{tensor}: inferred {tensor.dtype}, got {actual}"


def check_lowerings(build: Callable[..., Any], values: list[Any]) -> None:
    """Compare the loop form of every node of the op with its NumPy kernel."""
    with tf.Graph().as_default() as graph, on_reference_kernels() as session:
        inputs = [tf.placeholder(v.dtype, v.shape) for v in values]
        build(*inputs)
        feeds = dict(zip(inputs, values, strict=True))
        for node in graph.nodes:
            if node.op.has("element") or node.op.has("loop"):
                found = session.run([*node.inputs, *node.outputs], feeds)
                count = len(node.inputs)
                check_loop(node, found[:count], found[count:])


@contextmanager
def on_reference_kernels() -> Iterator[Any]:
    """A session whose steps are not compiled."""
    before, engine.COMPILES = engine.COMPILES, False
    try:
        with tf.Session() as session:
            yield session
    finally:
        engine.COMPILES = before


def check_loop(node: Any, sources: list[Any], wanted: list[Any]) -> None:
    """Compare the loop form of one node with the values of its outputs."""
    arrays = [np.asarray(source) for source in sources]
    flat = [Operand(i, a.shape, a.dtype, a) for i, a in enumerate(arrays)]
    operands = node.op.parsed.group(flat, node.input_counts())
    for output, right in enumerate(wanted):
        kind = np.asarray(right).dtype
        error = 4 * rounding(kind) if is_narrow_float(kind) else 0  # a loop form rounds each step
        forms = {
            "packed_loop": (8,),
            "relaxed_loop": (1, True),
        }
        others = [form for name, form in forms.items() if node.op.has(name)]
        for form in [(1,), *others]:
            with np.errstate(all="ignore"):
                value = run_loop(node.op, operands, arrays, np.shape(right), output, *form)
            assert_close(value, right, max(1e-4, error), 1e-5)


#: The number of rows of a table that run on an emulated GPU, per op and dtype.
_EMULATED_ROWS = 10**9 if os.environ.get("THALWEG_SOAK") else 1
_emulated = Counter[tuple[str, ...]]()


def check_on_emulated_gpu(
    build: Callable[..., Any], values: list[Any], rtol: float, atol: float
) -> None:
    """Compare the op's CUDA kernels, on an emulated GPU, with its NumPy kernels."""
    with tf.Graph().as_default() as graph:
        inputs = [tf.placeholder(v.dtype, v.shape) for v in values]
        outputs = _flat(build(*inputs))
        looped = [n for n in graph.nodes if n.op.has("element") or n.op.has("loop")]
        kinds = {(n.type, *(t.dtype.name for t in n.inputs)) for n in looped}
        if all(_emulated[kind] >= _EMULATED_ROWS for kind in kinds):
            return
        _emulated.update(kinds)
        feeds = dict(zip(inputs, values, strict=True))
        with on_reference_kernels() as session:
            wanted = session.run(outputs, feeds)
        with emulated_kernels():
            found = run_emulated(outputs, feeds)
    for one, two in zip(found, wanted, strict=True):
        kind = np.asarray(two).dtype
        error = 4 * rounding(kind) if is_narrow_float(kind) else 0
        assert_close(one, two, max(rtol, error), max(atol, error))


def check_round_trip(build: Callable[..., Any], values: list[Any], wanted: list[Any]) -> None:
    """Check that a graph imported from its GraphDef is the same and computes the same values."""
    with tf.Graph().as_default() as graph:
        inputs = [tf.placeholder(v.dtype, v.shape) for v in values]
        outputs = _flat(build(*inputs))
        written = graph.as_graph_def(add_shapes=True).SerializeToString()
    with tf.Graph().as_default() as again, tf.Session() as session:
        names = [tensor.name for tensor in inputs + outputs]
        found = tf.import_graph_def(tf.GraphDef.FromString(written), None, names, name="")
        fetched = session.run(
            found[len(inputs) :], dict(zip(found[: len(inputs)], values, strict=True))
        )
        assert again.as_graph_def() == graph.as_graph_def()
    for one, two in zip(fetched, wanted, strict=True):
        assert_close(one, two)


def check_gradient(
    build: Callable[..., Any],
    values: list[Any],
    which: list[int],
    second: bool,
    rtol: float,
    atol: float,
    single: bool = False,
    step: float = 0.5,
) -> list[list[Any]]:
    """Compare gradients and their gradients with central differences in float64; returns both."""
    values, smooth = _differentiated(values, which, single)
    with gradient_check(second), tf.Graph().as_default(), tf.Session() as session:
        inputs = [tf.constant(v, name=f"input_{i}") for i, v in enumerate(values)]
        orders = [_order(build(*inputs), [inputs[i] for i in smooth])]
        grads = [g for g in orders[0].grads if g is not None]
        if second and grads:
            orders.append(_order(grads, [inputs[i] for i in smooth]))
        return _compare(session, orders, inputs, values, smooth, rtol, atol, step)


class _Order(NamedTuple):
    """A scalar, and its gradients with respect to the smooth inputs."""

    total: Any
    grads: list[Any]


def _order(outputs: Any, inputs: list[Any]) -> _Order:
    total = _weighted(outputs)
    grads = tf.gradients(total, inputs)
    return _Order(total, [None if g is None else tf.convert_to_tensor(g) for g in grads])


def check_gradient_of_unknown(
    build: Callable[..., Any],
    values: list[Any],
    which: list[int],
    wanted: list[list[Any]],
    single: bool,
) -> None:
    """Check that gradients of both orders are equal for inputs of unknown rank."""
    values, smooth = _differentiated(values, which, single)
    with (
        warnings.catch_warnings(action="ignore", category=UserWarning),  # about dense slices
        tf.Graph().as_default(),
        on_reference_kernels() as session,
    ):
        inputs = [tf.placeholder(v.dtype, None, name=f"input_{i}") for i, v in enumerate(values)]
        feeds = dict(zip(inputs, values, strict=True))
        outputs = build(*inputs)
        for rights in wanted:
            flat = _flat(outputs)
            shapes = [np.shape(value) for value in session.run(flat, feeds)]
            grads = tf.gradients(_weighted(flat, shapes), [inputs[i] for i in smooth])
            assert [grad is None for grad in grads] == [right is None for right in rights]
            outputs = [tf.convert_to_tensor(g) for g in grads if g is not None]
            known = [right for right in rights if right is not None]
            for grad, value, right in zip(outputs, session.run(outputs, feeds), known, strict=True):
                _check_static(grad, right)
                assert_close(value, right, 1e-5, 1e-5)


def _differentiated(
    values: list[Any], which: list[int], single: bool
) -> tuple[list[Any], list[int]]:
    """The inputs in the precision of the check, and those among `which` that are smooth."""
    precise = values if single else [_double(v) for v in values]
    return precise, [i for i in which if precise[i].dtype.kind in "fc"]


def _compare(
    session: Any,
    orders: list[_Order],
    inputs: list[Any],
    values: list[Any],
    smooth: list[int],
    rtol: float,
    atol: float,
    long_step: float,
) -> list[list[Any]]:
    """Compare the gradients of each order with central differences; returns their values, None for
    those that do not exist.

    All inputs are fed, so gradients are not constant-folded. The orders run as one step, which is
    compiled once.
    """
    feeds = {inputs[i]: values[i] for i in smooth}
    known = [[grad for grad in order.grads if grad is not None] for order in orders]
    fetches = [order.total for order in orders], known
    fetched = [iter(grads) for grads in session.run(fetches, feeds)[1]]
    result = [
        [None if grad is None else next(rest) for grad in order.grads]
        for order, rest in zip(orders, fetched, strict=True)
    ]
    for number, position in enumerate(smooth):
        value = values[position]
        step = long_step if value.dtype == np.float32 else _STEP
        numeric = _differences(
            lambda v, p=position: np.array(session.run(fetches, feeds | {inputs[p]: v})[0]),
            len(orders),
            value,
            step,
        )
        for power, (slopes, expected) in enumerate(zip(result, numeric, strict=True)):
            right = 0 if slopes[number] is None else slopes[number]
            scale = 10**power
            message = f"order {power + 1}, input {position}"
            np.testing.assert_allclose(right, expected, scale * rtol, scale * atol, err_msg=message)
    return result


def _differences(function: Callable[[Any], Any], count: int, value: Any, step: float) -> Any:
    """The central differences of a vector of `count` scalars, for each element of `value`."""
    result = np.zeros((count, *value.shape), value.dtype)
    directions = (1.0, 1j) if value.dtype.kind == "c" else (1.0,)
    for index in np.ndindex(value.shape):
        for direction in directions:
            shifted = [value.copy(), value.copy()]
            shifted[0][index] += step * direction
            shifted[1][index] -= step * direction
            slopes = (function(shifted[0]) - function(shifted[1])) / (2 * step)
            result[:, *index] += slopes * direction
    return result


def _double(value: Any) -> Any:
    if is_float(value.dtype):
        return value.astype(np.float64)
    return value.astype(np.complex128) if value.dtype.kind == "c" else value


def _weighted(outputs: Any, shapes: Sequence[tuple[int, ...]] | None = None) -> Any:
    """A scalar that depends on every element of the outputs with a different weight.

    It is quadratic in them, so that second derivatives also go through the backward ops of linear
    functions. `shapes` must be given if they are not static.
    """
    rng = np.random.default_rng(7)
    parts = []
    for index, output in enumerate(_flat(outputs)):
        shape = output.shape.as_list() if shapes is None else shapes[index]
        if output.dtype.is_complex:
            weights = tf.constant(rng.normal(size=shape) + 1j * rng.normal(size=shape))
            product = tf.real(output * (weights + 0.1 * output))
        elif output.dtype.is_floating:
            weights = tf.constant(rng.normal(size=shape), output.dtype.base_dtype)
            product = output * (weights + 0.1 * output)
        else:
            continue
        parts.append(tf.cast(tf.reduce_sum(product), tf.float64))
    return tf.add_n(parts)


def _flat(outputs: Any) -> list[Any]:
    if isinstance(outputs, tf.Tensor):
        return [outputs]
    if isinstance(outputs, tf.SparseTensor | tf.IndexedSlices):
        return outputs.components()
    flat: list[Any] = []
    for part in outputs:
        flat += _flat(part)
    return flat
