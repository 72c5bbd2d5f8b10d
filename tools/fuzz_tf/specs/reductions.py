"""Reductions, scans, segments, searches."""

from __future__ import annotations

import numpy as np

from tools.fuzz_tf.draw import Code, Draw, spec


def _reduced(draw: Draw, dtype: str, fill: str) -> None:
    shape = draw.shape()
    axis = draw.axes(len(shape))
    if isinstance(axis, int) and draw.chance(0.2):
        axis = draw.given(axis, draw.choice("int32", "int64"))
    draw.call(
        draw.tensor(dtype, shape, fill), axis, **({"keepdims": True} if draw.chance(0.4) else {})
    )


@spec("reduce_sum reduce_prod reduce_mean", ulps=256)
def _sums(draw: Draw) -> None:
    dtype = draw.choice(draw.numeric(), draw.numeric(), "complex64")
    fills = ("unit", "normal", "ties") + (
        ("special",) if dtype in ("float32", "float64", "int32") else ()
    )
    _reduced(draw, dtype, draw.choice(*fills))


@spec("reduce_max reduce_min", ulps=2)
def _extremes(draw: Draw) -> None:
    _reduced(draw, draw.numeric(), draw.choice("normal", "ties", "special"))


@spec("reduce_any reduce_all")
def _logical(draw: Draw) -> None:
    _reduced(draw, "bool", "normal")


@spec("reduce_logsumexp math.reduce_euclidean_norm math.reduce_std math.reduce_variance", ulps=512)
def _float_reductions(draw: Draw) -> None:
    _reduced(draw, draw.floating(), draw.choice("normal", "unit", "ties"))


@spec("nn.moments", ulps=512)
def _moments(draw: Draw) -> None:
    shape = draw.shape(1, low=1)
    axes = draw.rng.permutation(len(shape))[: draw.integer(1, len(shape))].tolist()
    draw.call(draw.tensor(draw.floating(), shape), axes, keepdims=draw.chance(0.5))


@spec("nn.weighted_moments", ulps=512)
def _weighted_moments(draw: Draw) -> None:
    dtype, shape = draw.floating(narrow=False), draw.shape(1, low=1)
    axes = draw.rng.permutation(len(shape))[: draw.integer(1, len(shape))].tolist()
    draw.call(
        draw.tensor(dtype, shape),
        axes,
        draw.tensor(dtype, shape, "positive"),
        keepdims=draw.chance(0.5),
    )


@spec("nn.sufficient_statistics", ulps=512)
def _sufficient(draw: Draw) -> None:
    shape = draw.shape(1, low=1)
    draw.call(
        draw.tensor(draw.floating(narrow=False), shape),
        [0],
        shift=draw.choice(None, 0.5),
        keepdims=draw.chance(0.5),
    )


@spec("argmax argmin")
def _arg(draw: Draw) -> None:
    shape = draw.shape(1, low=1)
    more = {"output_type": Code(draw.choice("tf.int32", "tf.int64"))} if draw.chance(0.5) else {}
    draw.call(
        draw.tensor(draw.numeric(), shape, draw.choice("ties", "normal")),
        draw.axis(len(shape)),
        **more,
    )


@spec("cumsum cumprod", ulps=256)
def _scans(draw: Draw) -> None:
    shape = draw.shape(1)
    x = draw.tensor(draw.choice(draw.numeric(), "complex64"), shape, draw.choice("unit", "ties"))
    draw.call(x, draw.axis(len(shape)), exclusive=draw.chance(0.5), reverse=draw.chance(0.5))


@spec("math.cumulative_logsumexp", ulps=512)
def _cumulative_logsumexp(draw: Draw) -> None:
    shape = draw.shape(1, low=1)
    x = draw.tensor(draw.floating(), shape)
    draw.call(x, draw.axis(len(shape)), exclusive=draw.chance(0.5), reverse=draw.chance(0.5))


@spec("segment_sum segment_mean segment_prod segment_max segment_min", ulps=256)
def _segment(draw: Draw) -> None:
    shape = draw.shape(1, 3, low=1)
    ids = np.sort(draw.rng.integers(0, 6, shape[0]))
    x = draw.tensor(draw.numeric(), shape, draw.choice("ties", "unit"))
    draw.call(x, draw.given(ids, draw.choice("int32", "int64")))


@spec(
    "unsorted_segment_sum unsorted_segment_mean unsorted_segment_prod unsorted_segment_max"
    " unsorted_segment_min unsorted_segment_sqrt_n",
    ulps=256,
)
def _unsorted_segment(draw: Draw) -> None:
    shape = draw.shape(1, 3)
    rank = draw.integer(1, len(shape))
    dtype = (
        draw.numeric() if draw.function.endswith(("sum", "max", "min", "prod")) else draw.floating()
    )
    ids = draw.ints(shape[:rank], -1, 6)
    draw.call(draw.tensor(dtype, shape, draw.choice("ties", "unit")), ids, 6)


@spec("sparse_segment_sum sparse_segment_mean sparse_segment_sqrt_n", ulps=256)
def _sparse_segment(draw: Draw) -> None:
    shape = draw.shape(1, 3, low=1)
    count = draw.integer(1, 8)
    ids = np.sort(draw.rng.integers(0, 5, count))
    x = draw.tensor(draw.floating(), shape)
    more = {"num_segments": draw.integer(5, 7)} if draw.chance(0.4) else {}
    draw.call(x, draw.ints((count,), 0, shape[0]), draw.given(ids, "int32"), **more)


@spec("nn.top_k math.top_k")
def _top_k(draw: Draw) -> None:
    shape = draw.shape(1, 3, low=1)
    k = draw.integer(0, shape[-1])
    draw.call(draw.tensor(draw.numeric(), shape, draw.choice("ties", "normal")), k, sorted=True)


@spec("nn.in_top_k math.in_top_k")
def _in_top_k(draw: Draw) -> None:
    rows, classes = draw.length(), draw.length(2)
    x = draw.tensor("float32", (rows, classes), draw.choice("ties", "normal"))
    draw.call(x, draw.ints((rows,), 0, classes), draw.integer(1, classes))


@spec("sort argsort")
def _sort(draw: Draw) -> None:
    shape = draw.shape(1, 3)
    x = draw.tensor(
        draw.choice("float32", "float64", "int32", "int64"), shape, draw.choice("ties", "normal")
    )
    draw.call(x, draw.choice(-1, draw.axis(len(shape))), draw.choice("ASCENDING", "DESCENDING"))


@spec("searchsorted")
def _searchsorted(draw: Draw) -> None:
    rows = draw.shape(0, 2, low=1)
    dtype = draw.choice("float32", "float64", "int32", "int64")
    one = np.sort(draw.rng.integers(-5, 6, (*rows, draw.length())), -1)
    values = draw.tensor(dtype, (*rows, draw.length()), "ties")
    draw.call(draw.given(one, dtype), values, side=draw.choice("left", "right"))


@spec("bincount")
def _bincount(draw: Draw) -> None:
    shape = draw.shape(1, 2)
    weights = (
        draw.tensor(draw.choice("float32", "float64", "int32", "int64"), shape)
        if draw.chance(0.4)
        else None
    )
    more = {"minlength": draw.integer(0, 9)} if draw.chance(0.4) else {}
    more |= {"maxlength": draw.integer(0, 9)} if draw.chance(0.4) else {}
    draw.call(draw.ints(shape, 0, 12, "int32"), weights, **more)


@spec("histogram_fixed_width histogram_fixed_width_bins")
def _histogram(draw: Draw) -> None:
    dtype = draw.choice("float32", "float64", "int32", "int64")
    limits = draw.given([-3, 4], dtype)
    draw.call(draw.tensor(dtype, draw.shape()), limits, draw.integer(1, 9))


@spec("confusion_matrix")
def _confusion(draw: Draw) -> None:
    count = draw.length(0)
    more = {"weights": draw.tensor("float32", (count,))} if draw.chance(0.4) else {}
    more |= {"dtype": Code("tf.float32")} if more or draw.chance(0.3) else {}
    more |= {"num_classes": 7} if draw.chance(0.5) else {}
    draw.call(draw.ints((count,), 0, 5), draw.ints((count,), 0, 5), **more)


@spec("unique unique_with_counts")
def _unique(draw: Draw) -> None:
    dtype = draw.choice(draw.numeric(), "string")
    more = {"out_idx": Code("tf.int64")} if draw.chance(0.3) else {}
    draw.call(draw.tensor(dtype, (draw.length(0),), "ties"), **more)


@spec("setdiff1d")
def _setdiff(draw: Draw) -> None:
    dtype = draw.choice(draw.numeric(), "string")
    draw.call(
        draw.tensor(dtype, (draw.length(0),), "ties"), draw.tensor(dtype, (draw.length(0),), "ties")
    )


@spec("reduce_join strings.reduce_join")
def _reduce_join(draw: Draw) -> None:
    shape = draw.shape(0, 3)
    draw.call(
        draw.tensor("string", shape),
        draw.axes(len(shape)),
        keep_dims=draw.chance(0.3),
        separator=draw.choice("", ", "),
    )


@spec("linalg.norm norm", ulps=512)
def _norm(draw: Draw) -> None:
    shape = draw.shape(1, 3, low=1)
    order = draw.choice("euclidean", 1, 2, 3.5, Code("np.inf"))
    axis = draw.choice(None, draw.axis(len(shape)))
    if len(shape) >= 2 and draw.chance(0.4):
        axis = draw.choice([-2, -1], (0, 1))
        order = draw.choice("euclidean", "fro", 1, Code("np.inf"))
    draw.call(draw.tensor(draw.floating(), shape), order, axis, keepdims=draw.chance(0.5))


@spec("nn.l2_normalize", ulps=256)
def _l2_normalize(draw: Draw) -> None:
    shape = draw.shape(1, 3, low=1)
    draw.call(draw.tensor(draw.floating(), shape), draw.axis(len(shape)))


@spec("linalg.normalize", ulps=256)
def _normalize(draw: Draw) -> None:
    shape = draw.shape(1, 3, low=1)
    draw.call(draw.tensor(draw.floating(), shape), axis=draw.axis(len(shape)))


@spec("clip_by_norm clip_by_average_norm", ulps=256)
def _clip_norm(draw: Draw) -> None:
    x = draw.tensor(draw.floating(), draw.shape(1, low=1))
    draw.call(x, draw.number(0.1, 3))


@spec("clip_by_global_norm global_norm", ulps=256)
def _global_norm(draw: Draw) -> None:
    dtype = draw.floating(narrow=False)
    parts = [draw.tensor(dtype, draw.shape(1, low=1)) for _ in range(draw.integer(1, 3))]
    draw.call(parts, *([draw.number(0.1, 3)] if draw.function.startswith("clip") else []))


@spec("lbeta", ulps=512)
def _lbeta(draw: Draw) -> None:
    draw.call(draw.tensor(draw.floating(narrow=False), draw.shape(1, low=1), "positive"))
