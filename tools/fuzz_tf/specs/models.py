"""Losses, metrics, quantization, schedules, state."""

from __future__ import annotations

from typing import Any

from tools.fuzz_tf.draw import Code, Draw, spec

_REDUCTIONS = (
    "SUM",
    "NONE",
    "MEAN",
    "SUM_OVER_BATCH_SIZE",
    "SUM_BY_NONZERO_WEIGHTS",
    "SUM_OVER_NONZERO_WEIGHTS",
)


def _weighting(draw: Draw, shape: tuple[int, ...]) -> dict[str, Any]:
    more: dict[str, Any] = {}
    if draw.chance(0.6):
        form = draw.choice((), shape, tuple(1 if draw.chance(0.5) else n for n in shape))
        more["weights"] = draw.tensor("float32", form, draw.choice("positive", "0..2"))
    if draw.chance(0.5):
        more["reduction"] = Code(f"tf.losses.Reduction.{draw.choice(*_REDUCTIONS)}")
    return more


@spec(
    "losses.absolute_difference losses.mean_squared_error losses.huber_loss"
    " losses.log_loss losses.hinge_loss",
    ulps=512,
)
def _losses(draw: Draw) -> None:
    shape = draw.shape(1, 3, low=1)
    fill = {"losses.log_loss": "0..1"}.get(draw.function, "normal")
    labels = draw.tensor("float32", shape, "0..1" if fill != "normal" else "unit")
    draw.call(labels, draw.tensor("float32", shape, fill), **_weighting(draw, shape))


@spec("losses.mean_pairwise_squared_error", ulps=2048)
def _pairwise(draw: Draw) -> None:
    shape = draw.shape(2, 3, low=1)
    draw.call(draw.tensor("float32", shape), draw.tensor("float32", shape))


@spec("losses.cosine_distance", ulps=512)
def _cosine(draw: Draw) -> None:
    shape = draw.shape(1, 3, low=1)
    draw.call(
        draw.tensor("float32", shape), draw.tensor("float32", shape), axis=draw.axis(len(shape))
    )


@spec("losses.sigmoid_cross_entropy losses.softmax_cross_entropy", ulps=512)
def _entropies(draw: Draw) -> None:
    shape = (draw.length(), draw.length(2, 9))
    more = {"label_smoothing": 0.1} if draw.chance(0.4) else {}
    more |= (
        {"weights": draw.tensor("float32", draw.choice((), shape[:1]), "positive")}
        if "softmax" in draw.function and draw.chance(0.4)
        else {}
    )
    draw.call(draw.tensor("float32", shape, "0..1"), draw.tensor("float32", shape), **more)


@spec("losses.sparse_softmax_cross_entropy", ulps=512)
def _sparse_entropy(draw: Draw) -> None:
    shape = (draw.length(), draw.length(2, 9))
    labels = draw.ints(draw.choice(shape[:1], (shape[0], 1)), 0, shape[1])
    draw.call(labels, draw.tensor("float32", shape))


@spec("losses.compute_weighted_loss", ulps=512)
def _weighted(draw: Draw) -> None:
    shape = draw.shape(1, 3, low=1)
    draw.call(draw.tensor("float32", shape), **_weighting(draw, shape))


def _metric(draw: Draw, *args: Any, **kwargs: Any) -> None:
    draw.line(f"value, update = {draw.calling(*args, **kwargs)}")
    draw.line("steps = [update] * " + str(draw.integer(1, 2)))
    draw.line("value")


@spec("metrics.mean metrics.mean_tensor", ulps=256, gradient=False)
def _mean(draw: Draw) -> None:
    shape = draw.shape(1, 2, low=1)
    more = (
        {"weights": draw.tensor("float32", draw.choice((), shape), "0..2")}
        if draw.chance(0.5)
        else {}
    )
    draw.line(f"x = tf.ensure_shape({draw.tensor('float32', shape)}, {list(shape)})")
    _metric(draw, Code("x"), **more)


@spec(
    "metrics.mean_absolute_error metrics.mean_squared_error metrics.root_mean_squared_error",
    ulps=256,
    gradient=False,
)
def _errors(draw: Draw) -> None:
    shape = draw.shape(1, 2, low=1)
    more = (
        {"weights": draw.tensor("float32", draw.choice((), shape), "positive")}
        if draw.chance(0.5)
        else {}
    )
    _metric(draw, draw.tensor("float32", shape), draw.tensor("float32", shape), **more)


@spec("metrics.mean_relative_error", ulps=256, gradient=False)
def _relative(draw: Draw) -> None:
    shape = draw.shape(1, 2, low=1)
    _metric(draw, *(draw.tensor("float32", shape, f) for f in ("normal", "normal", "positive")))


@spec("metrics.mean_cosine_distance", ulps=256, gradient=False)
def _cosine_metric(draw: Draw) -> None:
    shape = draw.shape(2, 2, low=1)
    _metric(draw, draw.tensor("float32", shape), draw.tensor("float32", shape), dim=1)


@spec("metrics.percentage_below", ulps=256, gradient=False)
def _below(draw: Draw) -> None:
    _metric(draw, draw.tensor("float32", draw.shape(1, 2, low=1)), draw.number(-1, 1))


@spec("metrics.accuracy", ulps=64, gradient=False)
def _accuracy(draw: Draw) -> None:
    count, dtype = draw.length(), draw.choice("int32", "int64", "string", "float32")
    more = {"weights": draw.tensor("float32", (count,), "0..2")} if draw.chance(0.5) else {}
    _metric(
        draw, draw.tensor(dtype, (count,), "0..3"), draw.tensor(dtype, (count,), "0..3"), **more
    )


@spec(
    "metrics.precision metrics.recall metrics.true_positives metrics.true_negatives"
    " metrics.false_positives metrics.false_negatives",
    ulps=64,
    gradient=False,
)
def _counts(draw: Draw) -> None:
    count = draw.length()
    more = (
        {"weights": draw.tensor("float32", draw.choice((), (count,)), "0..2")}
        if draw.chance(0.5)
        else {}
    )
    dtype = draw.choice("bool", "int32", "float32")
    _metric(
        draw,
        *(draw.tensor(dtype, (count,), "0..2" if dtype == "int32" else "unit") for _ in range(2)),
        **more,
    )


@spec(
    "metrics.precision_at_thresholds metrics.recall_at_thresholds"
    " metrics.true_positives_at_thresholds"
    " metrics.true_negatives_at_thresholds metrics.false_positives_at_thresholds"
    " metrics.false_negatives_at_thresholds",
    ulps=64,
    gradient=False,
)
def _thresholds(draw: Draw) -> None:
    count = draw.length()
    more = {"weights": draw.tensor("float32", (count,), "0..2")} if draw.chance(0.5) else {}
    _metric(
        draw,
        draw.tensor("bool", (count,)),
        draw.tensor("float32", (count,), "0..1"),
        [0.1, 0.5, 0.9],
        **more,
    )


@spec("metrics.auc", ulps=512, gradient=False)
def _auc(draw: Draw) -> None:
    count = draw.length(2)
    more: dict[str, Any] = (
        {"weights": draw.tensor("float32", (count,), "0..2")} if draw.chance(0.4) else {}
    )
    more |= {
        "curve": draw.choice("ROC", "PR"),
        "summation_method": draw.choice("trapezoidal", "minoring", "majoring"),
    }
    more |= {"num_thresholds": draw.choice(5, 20, 200)}
    _metric(draw, draw.tensor("bool", (count,)), draw.tensor("float32", (count,), "0..1"), **more)


@spec(
    "metrics.sensitivity_at_specificity metrics.specificity_at_sensitivity",
    ulps=512,
    gradient=False,
)
def _sensitivity(draw: Draw) -> None:
    count = draw.length(2)
    _metric(
        draw,
        draw.tensor("bool", (count,)),
        draw.tensor("float32", (count,), "0..1"),
        draw.number(0.1, 0.9),
        num_thresholds=20,
    )


@spec("metrics.mean_iou metrics.mean_per_class_accuracy", ulps=64, gradient=False)
def _iou(draw: Draw) -> None:
    count = draw.length()
    more = {"weights": draw.tensor("float32", (count,), "0..2")} if draw.chance(0.4) else {}
    _metric(draw, draw.ints((count,), 0, 4, "int64"), draw.ints((count,), 0, 4, "int64"), 4, **more)


@spec(
    "metrics.precision_at_k metrics.recall_at_k metrics.average_precision_at_k"
    " metrics.sparse_precision_at_k",
    ulps=256,
    gradient=False,
)
def _at_k(draw: Draw) -> None:
    rows, classes = draw.integer(1, 5), draw.integer(3, 6)
    labels = draw.ints((rows, draw.integer(1, 2)), 0, classes, "int64")
    k = draw.integer(1, 3)
    x = draw.given(draw.rng.permuted(draw.rng.standard_normal((rows, classes)), axis=1), "float32")
    draw.line(f"labels = tf.ensure_shape({labels}, {list(draw.arrays[0].shape)})")
    draw.line(f"x = tf.ensure_shape({x}, [{rows}, {classes}])")
    _metric(draw, Code("labels"), Code("x"), k)


@spec("quantize quantization.quantize", ulps=8)
def _quantize(draw: Draw) -> None:
    x = draw.tensor("float32", draw.shape(1, 3), "-4..4")
    kind = draw.choice("quint8", "qint8", "qint32")
    mode = draw.choice("MIN_COMBINED", "MIN_FIRST", "SCALED")
    if kind == "qint32" and mode == "SCALED":
        mode = "MIN_FIRST"
    rounding = "HALF_TO_EVEN" if mode == "SCALED" else "HALF_AWAY_FROM_ZERO"
    call = draw.calling(x, -3.5, 3.0, Code(f"tf.{kind}"), mode=mode, round_mode=rounding)
    draw.line(f"y, low, high = {call}")
    back = f"tf.dequantize(y, low, high, mode={mode!r})"
    draw.line(f"[tf.bitcast(y, tf.{kind.replace('q', '')}), low, high, {back}]")


@spec("quantization.quantize_and_dequantize", ulps=64)
def _quantize_dequantize(draw: Draw) -> None:
    x = draw.tensor(draw.choice("float32", "float64"), draw.shape(1, 3), "-4..4")
    more: dict[str, Any] = {"range_given": True} if draw.chance(0.5) else {}
    more |= {"signed_input": False} if draw.chance(0.3) else {}
    more |= {"num_bits": draw.integer(3, 8)} if draw.chance(0.4) else {}
    draw.call(x, -3.0 if more.get("signed_input", True) else 0.0, 3.0, **more)


@spec("fake_quant_with_min_max_args", ulps=64)
def _fake_quant(draw: Draw) -> None:
    more: dict[str, Any] = {"narrow_range": True} if draw.chance(0.3) else {}
    draw.call(
        draw.tensor("float32", draw.shape(), "-8..8"),
        draw.number(-6, -1),
        draw.number(1, 6),
        num_bits=draw.integer(2, 8),
        **more,
    )


@spec("fake_quant_with_min_max_vars", ulps=64)
def _fake_quant_vars(draw: Draw) -> None:
    x = draw.tensor("float32", draw.shape(), "-8..8")
    draw.call(
        x,
        draw.tensor("float32", (), "-6..-1"),
        draw.tensor("float32", (), "1..6"),
        num_bits=draw.integer(2, 8),
    )


@spec("fake_quant_with_min_max_vars_per_channel", ulps=64)
def _fake_quant_channels(draw: Draw) -> None:
    shape = draw.shape(1, 3, low=1)
    x = draw.tensor("float32", shape, "-8..8")
    draw.call(
        x, draw.tensor("float32", shape[-1:], "-6..-1"), draw.tensor("float32", shape[-1:], "1..6")
    )


@spec(
    "train.exponential_decay train.natural_exp_decay train.inverse_time_decay"
    " train.polynomial_decay train.cosine_decay"
    " train.linear_cosine_decay train.cosine_decay_restarts",
    ulps=64,
)
def _schedules(draw: Draw) -> None:
    step = draw.given(draw.integer(0, 30), draw.choice("int32", "int64"))
    rate, steps = draw.number(0.01, 1), draw.integer(1, 20)
    name = draw.function.split(".")[1]
    stairs = {"staircase": draw.chance(0.5)}
    if name in ("exponential_decay", "natural_exp_decay", "inverse_time_decay"):
        draw.call(rate, step, steps, draw.number(0.1, 0.9), **stairs)
    elif name == "polynomial_decay":
        draw.call(rate, step, steps, 0.01, power=draw.choice(1.0, 2.0, 0.5), cycle=draw.chance(0.5))
    else:
        draw.call(rate, step, steps)


@spec("train.piecewise_constant")
def _piecewise(draw: Draw) -> None:
    draw.call(draw.given(draw.integer(0, 30), "int32"), [5, 12, 20], [1.0, 0.5, 0.25, 0.1])


@spec(
    "scatter_add scatter_sub scatter_mul scatter_div scatter_update scatter_max scatter_min",
    ulps=64,
    gradient=False,
)
def _scatter(draw: Draw) -> None:
    shape, dtype = draw.shape(1, 3, low=1), draw.choice("float32", "float64", "int32")
    start = draw.tensor(dtype, shape)
    count = draw.shape(0, 1, low=0, high=5)
    index = draw.ints(count, 0, shape[0] + draw.chance(0.03))
    if draw.function == "scatter_update":
        distinct = draw.rng.permutation(shape[0])[: draw.integer(0, shape[0])]
        draw.arrays[-1], count = distinct.astype("int32"), distinct.shape
    draw.line(f"v = tf.Variable({start}, validate_shape=False, use_resource=False)")
    draw.call(Code("v"), index, draw.tensor(dtype, (*count, *shape[1:]), "nonzero"))


@spec("scatter_nd_add scatter_nd_sub scatter_nd_update", ulps=64, gradient=False)
def _scatter_nd(draw: Draw) -> None:
    shape, dtype = draw.shape(1, 3, low=1), draw.choice("float32", "float64", "int32")
    rows = draw.rng.permutation(shape[0])[: draw.integer(1, shape[0])][:, None]
    draw.line(
        f"v = tf.Variable({draw.tensor(dtype, shape)}, validate_shape=False, use_resource=False)"
    )
    draw.call(Code("v"), draw.given(rows, "int32"), draw.tensor(dtype, (len(rows), *shape[1:])))


@spec("assign assign_add assign_sub", ulps=8, gradient=False)
def _assign(draw: Draw) -> None:
    shape, dtype = draw.shape(), draw.choice("float32", "float64", "int32", "float16")
    start = draw.tensor(dtype, shape)
    draw.line(f"v = tf.Variable({start}, validate_shape=False, use_resource={draw.chance(0.5)})")
    draw.call(Code("v"), draw.tensor(dtype, shape))


@spec("count_up_to", gradient=False)
def _count_up_to(draw: Draw) -> None:
    draw.line(f"v = tf.Variable({draw.integer(0, 3)}, use_resource=False)")
    draw.call(Code("v"), draw.integer(0, 4))


@spec(
    "assert_equal assert_less assert_less_equal assert_greater assert_greater_equal"
    " assert_none_equal",
    gradient=False,
)
def _assertions(draw: Draw) -> None:
    one, two = draw.broadcast_pair(2)
    sides = [draw.tensor("int32", s, draw.choice("unit", "positive")) for s in (one, two)]
    draw.line(f"with tf.control_dependencies([{draw.calling(*sides)}]):")
    draw.line("    y = tf.identity(x0)")
    draw.line("y")


@spec("assert_positive assert_negative assert_non_negative assert_non_positive", gradient=False)
def _sign_assertions(draw: Draw) -> None:
    x = draw.tensor(
        draw.choice("int32", "float32"), draw.shape(0, 2), draw.choice("positive", "normal")
    )
    draw.line(f"with tf.control_dependencies([{draw.calling(x)}]):")
    draw.line("    y = tf.identity(x0)")
    draw.line("y")


@spec("assert_rank assert_rank_at_least", gradient=False)
def _rank_assertions(draw: Draw) -> None:
    shape = draw.shape()
    x = draw.tensor("float32", shape)
    rank = max(0, len(shape) + draw.choice(0, 0, 0, -1, 1))
    draw.line(f"with tf.control_dependencies([{draw.calling(x, rank)}]):")
    draw.line("    y = tf.identity(x0)")
    draw.line("y")
