"""tf.nn: convolutions, pooling, normalisation, softmaxes and losses, embeddings, CTC."""

from __future__ import annotations

from typing import Any

import numpy as np

from tools.fuzz_tf.draw import Code, Draw, spec


def _image(draw: Draw, rank: int = 2, least: int = 3) -> tuple[int, ...]:
    top = {1: 17, 2: 9, 3: 5}[rank]
    return (
        draw.integer(1, 3),
        *(draw.integer(least, top) for _ in range(rank)),
        draw.integer(1, 5),
    )


@spec("nn.conv2d", ulps=512)
def _conv2d(draw: Draw) -> None:
    shape, dtype = _image(draw), draw.floating()
    window = (draw.integer(1, 3), draw.integer(1, 3), shape[-1], draw.integer(1, 5))
    stride = [1, draw.integer(1, 3), draw.integer(1, 3), 1]
    padding: Any = draw.choice("SAME", "VALID", [[0, 0], [1, 2], [0, 1], [0, 0]])
    more = {"dilations": [1, 2, 1, 1]} if draw.chance(0.15) and stride == [1, 1, 1, 1] else {}
    draw.call(
        draw.tensor(dtype, shape),
        draw.tensor(dtype, window),
        strides=stride,
        padding=padding,
        **more,
    )


@spec("nn.conv1d", ulps=512)
def _conv1d(draw: Draw) -> None:
    shape, dtype = _image(draw, 1), draw.floating()
    window = (draw.integer(1, 3), shape[-1], draw.integer(1, 5))
    draw.call(
        draw.tensor(dtype, shape),
        draw.tensor(dtype, window),
        draw.integer(1, 3),
        draw.choice("SAME", "VALID"),
    )


@spec("nn.conv3d", ulps=512)
def _conv3d(draw: Draw) -> None:
    shape, dtype = _image(draw, 3), draw.floating(narrow=False)
    window = (*(draw.integer(1, 3) for _ in range(3)), shape[-1], draw.integer(1, 3))
    stride = [1, *(draw.integer(1, 2) for _ in range(3)), 1]
    draw.call(
        draw.tensor(dtype, shape),
        draw.tensor(dtype, window),
        strides=stride,
        padding=draw.choice("SAME", "VALID"),
    )


@spec("nn.convolution", ulps=512)
def _convolution(draw: Draw) -> None:
    rank = draw.integer(1, 2)
    shape, dtype = _image(draw, rank, 5), draw.floating(narrow=False)
    window = (*(draw.integer(1, 3) for _ in range(rank)), shape[-1], draw.integer(1, 3))
    how = draw.choice("strides", "dilation_rate", "")
    more = {how: [draw.integer(1, 2) for _ in range(rank)]} if how else {}
    draw.call(
        draw.tensor(dtype, shape),
        draw.tensor(dtype, window),
        padding=draw.choice("SAME", "VALID"),
        **more,
    )


@spec("nn.atrous_conv2d", ulps=512)
def _atrous(draw: Draw) -> None:
    shape, dtype = _image(draw, 2, 5), draw.floating(narrow=False)
    window = (draw.integer(1, 3), draw.integer(1, 3), shape[-1], 2)
    draw.call(
        draw.tensor(dtype, shape),
        draw.tensor(dtype, window),
        draw.integer(1, 2),
        draw.choice("SAME", "VALID"),
    )


@spec("nn.conv2d_transpose", ulps=512)
def _conv2d_transpose(draw: Draw) -> None:
    n, h, w, c = _image(draw)
    dtype, stride, depth = draw.floating(), draw.integer(1, 3), draw.integer(1, 3)
    window, padding = (draw.integer(1, 3), draw.integer(1, 3)), draw.choice("SAME", "VALID")
    size = [
        d * stride if padding == "SAME" else (d - 1) * stride + k
        for d, k in zip((h, w), window, strict=True)
    ]
    draw.call(
        draw.tensor(dtype, (n, h, w, c)),
        draw.tensor(dtype, (*window, depth, c)),
        output_shape=[n, *size, depth],
        strides=[1, stride, stride, 1],
        padding=padding,
    )


@spec("nn.conv1d_transpose", ulps=512)
def _conv1d_transpose(draw: Draw) -> None:
    n, w, c = _image(draw, 1)
    dtype, stride, depth, k = (
        draw.floating(narrow=False),
        draw.integer(1, 3),
        draw.integer(1, 3),
        draw.integer(1, 3),
    )
    padding = draw.choice("SAME", "VALID")
    size = w * stride if padding == "SAME" else (w - 1) * stride + k
    draw.call(
        draw.tensor(dtype, (n, w, c)),
        draw.tensor(dtype, (k, depth, c)),
        [n, size, depth],
        stride,
        padding,
    )


@spec("nn.conv3d_transpose", ulps=512)
def _conv3d_transpose(draw: Draw) -> None:
    n, d, h, w, c = (
        draw.integer(1, 2),
        *(draw.integer(2, 4) for _ in range(3)),
        draw.integer(1, 2),
    )
    dtype, stride, k = draw.floating(narrow=False), draw.integer(1, 2), draw.integer(1, 3)
    padding = draw.choice("SAME", "VALID")
    size = [x * stride if padding == "SAME" else (x - 1) * stride + k for x in (d, h, w)]
    draw.call(
        draw.tensor(dtype, (n, d, h, w, c)),
        draw.tensor(dtype, (k, k, k, 2, c)),
        [n, *size, 2],
        [1, stride, stride, stride, 1],
        padding,
    )


@spec("nn.depthwise_conv2d", ulps=512)
def _depthwise(draw: Draw) -> None:
    shape, dtype = _image(draw), draw.floating()
    window = (draw.integer(1, 3), draw.integer(1, 3), shape[-1], draw.integer(1, 3))
    stride = draw.integer(1, 2)
    more = {"rate": [2, 2]} if stride == 1 and draw.chance(0.2) and min(shape[1:3]) > 4 else {}
    draw.call(
        draw.tensor(dtype, shape),
        draw.tensor(dtype, window),
        [1, stride, stride, 1],
        draw.choice("SAME", "VALID"),
        **more,
    )


@spec("nn.separable_conv2d", ulps=1024)
def _separable(draw: Draw) -> None:
    shape, dtype = _image(draw), draw.floating(narrow=False)
    depth = draw.integer(1, 2)
    first = draw.tensor(dtype, (draw.integer(1, 3), draw.integer(1, 3), shape[-1], depth))
    second = draw.tensor(dtype, (1, 1, shape[-1] * depth, draw.integer(1, 4)))
    stride = draw.integer(1, 2)
    draw.call(
        draw.tensor(dtype, shape),
        first,
        second,
        [1, stride, stride, 1],
        draw.choice("SAME", "VALID"),
    )


@spec("nn.conv2d_backprop_input nn.conv2d_backprop_filter", ulps=1024)
def _backprop(draw: Draw) -> None:
    n, h, w, c = _image(draw)
    dtype, stride, padding = (
        draw.floating(narrow=False),
        draw.integer(1, 2),
        draw.choice("SAME", "VALID"),
    )
    window = (draw.integer(1, 3), draw.integer(1, 3), c, draw.integer(1, 3))
    size = [
        -(-(d if padding == "SAME" else d - k + 1) // stride)
        for d, k in zip((h, w), window, strict=False)
    ]
    gradient = draw.tensor(dtype, (n, *size, window[-1]))
    how = {"strides": [1, stride, stride, 1], "padding": padding}
    if draw.function.endswith("input"):
        draw.call([n, h, w, c], draw.tensor(dtype, window), gradient, **how)
    else:
        draw.call(draw.tensor(dtype, (n, h, w, c)), list(window), gradient, **how)


@spec("nn.dilation2d nn.erosion2d", ulps=64)
def _dilation(draw: Draw) -> None:
    shape, dtype = _image(draw, 2, 4), draw.choice("float32", "float64")
    kernel = draw.tensor(dtype, (draw.integer(1, 3), draw.integer(1, 3), shape[-1]))
    strides, rates = [1, draw.integer(1, 2), 1, 1], [1, 1, draw.integer(1, 2), 1]
    draw.call(draw.tensor(dtype, shape), kernel, strides, rates, draw.choice("SAME", "VALID"))


@spec("nn.max_pool nn.avg_pool nn.max_pool2d nn.avg_pool2d", ulps=128)
def _pool(draw: Draw) -> None:
    size, stride = (
        [1, draw.integer(1, 3), draw.integer(1, 3), 1],
        [1, draw.integer(1, 3), draw.integer(1, 3), 1],
    )
    x = draw.tensor(draw.floating(), _image(draw), draw.choice("normal", "ties"))
    draw.call(x, ksize=size, strides=stride, padding=draw.choice("SAME", "VALID"))


@spec("nn.max_pool1d nn.avg_pool1d", ulps=128)
def _pool1d(draw: Draw) -> None:
    x = draw.tensor(draw.floating(), _image(draw, 1))
    draw.call(
        x,
        ksize=draw.integer(1, 3),
        strides=draw.integer(1, 3),
        padding=draw.choice("SAME", "VALID"),
    )


@spec("nn.max_pool3d nn.avg_pool3d", ulps=128)
def _pool3d(draw: Draw) -> None:
    x = draw.tensor(draw.choice("float32", "float64"), _image(draw, 3))
    size, stride = ([1, *(draw.integer(1, 3) for _ in range(3)), 1] for _ in range(2))
    draw.call(x, ksize=size, strides=stride, padding=draw.choice("SAME", "VALID"))


@spec("nn.pool", ulps=128)
def _general_pool(draw: Draw) -> None:
    rank = draw.integer(1, 2)
    x = draw.tensor("float32", _image(draw, rank, 5))
    how = draw.choice("strides", "dilation_rate", "")
    more = {how: [draw.integer(1, 2) for _ in range(rank)]} if how else {}
    size = [draw.integer(1, 3) for _ in range(rank)]
    draw.call(x, size, draw.choice("MAX", "AVG"), draw.choice("SAME", "VALID"), **more)


@spec("nn.max_pool_with_argmax")
def _pool_argmax(draw: Draw) -> None:
    x = draw.tensor(draw.floating(), _image(draw))
    more = {"include_batch_in_index": True} if draw.chance(0.4) else {}
    draw.call(
        x, ksize=[1, 2, 2, 1], strides=[1, 2, 1, 1], padding=draw.choice("SAME", "VALID"), **more
    )


@spec("nn.fractional_max_pool nn.fractional_avg_pool", ulps=128)
def _fractional(draw: Draw) -> None:
    x = draw.tensor("float32", (1, draw.integer(6, 9), draw.integer(6, 9), 2))
    draw.line(f"y = {draw.calling(x, [1.0, 1.5, 1.4, 1.0], deterministic=True, seed=3, seed2=4)}")
    draw.line("tf.shape(y[0])")


@spec("nn.local_response_normalization nn.lrn", ulps=256)
def _lrn(draw: Draw) -> None:
    x = draw.tensor(draw.choice("float32", "float16"), (1, 3, 3, draw.integer(1, 9)))
    draw.call(
        x,
        depth_radius=draw.integer(1, 5),
        bias=draw.number(0.5, 2),
        alpha=draw.number(0.1, 1),
        beta=draw.number(0.3, 1),
    )


@spec("nn.batch_normalization", ulps=256)
def _batch_normalization(draw: Draw) -> None:
    shape, dtype = draw.shape(1, 4, low=1), draw.floating()
    x, mean, variance = (
        draw.tensor(dtype, s, f)
        for s, f in ((shape, "normal"), (shape[-1:], "unit"), (shape[-1:], "positive"))
    )
    extra = [draw.tensor(dtype, shape[-1:]) if draw.chance(0.6) else None for _ in range(2)]
    draw.call(x, mean, variance, *extra, 0.001)


@spec("nn.fused_batch_norm", ulps=2048)
def _fused_batch_norm(draw: Draw) -> None:
    shape = (draw.integer(2, 3), draw.integer(2, 4), draw.integer(2, 4), draw.integer(1, 5))
    x = draw.tensor(draw.choice("float32", "float32", "float16"), shape)
    scale, offset = (draw.tensor("float32", shape[-1:]) for _ in range(2))
    if draw.chance(0.5):
        draw.line(f"y = {draw.calling(x, scale, offset, epsilon=0.01)}")
        draw.line("list(y[:3])")
    else:
        mean, variance = (draw.tensor("float32", shape[-1:], f) for f in ("unit", "positive"))
        more = {"mean": mean, "variance": variance, "epsilon": 0.01, "is_training": False}
        draw.line(f"y = {draw.calling(x, scale, offset, **more)}")
        draw.line("y[0]")


@spec("nn.normalize_moments", ulps=256)
def _normalize_moments(draw: Draw) -> None:
    dtype, shape = draw.choice("float32", "float64"), draw.shape(1, 2, low=1)
    draw.call(
        draw.tensor(dtype, (), "5..9"),
        draw.tensor(dtype, shape),
        draw.tensor(dtype, shape, "20..30"),
        draw.choice(None, 0.5),
    )


@spec("nn.softmax nn.log_softmax", ulps=128)
def _softmax(draw: Draw) -> None:
    shape = draw.shape(1, 4)
    x = draw.tensor(draw.floating(), shape, draw.choice("normal", "ties", "special"))
    draw.call(x, **({"axis": draw.axis(len(shape))} if draw.chance(0.6) else {}))


@spec("nn.softmax_cross_entropy_with_logits nn.softmax_cross_entropy_with_logits_v2", ulps=256)
def _softmax_cross_entropy(draw: Draw) -> None:
    shape, dtype = draw.shape(1, 3, low=1), draw.floating()
    labels = draw.tensor(dtype, shape, "positive")
    draw.call(labels=labels, logits=draw.tensor(dtype, shape))


@spec("nn.sparse_softmax_cross_entropy_with_logits", ulps=256)
def _sparse_cross_entropy(draw: Draw) -> None:
    shape, dtype = draw.shape(1, 3, low=1), draw.floating()
    labels = draw.ints(shape[:-1], 0, shape[-1] + (1 if draw.chance(0.03) else 0))
    draw.call(labels=labels, logits=draw.tensor(dtype, shape))


@spec("nn.sigmoid_cross_entropy_with_logits", ulps=256)
def _sigmoid_cross_entropy(draw: Draw) -> None:
    shape, dtype = draw.shape(), draw.floating()
    draw.call(labels=draw.tensor(dtype, shape, "0..1"), logits=draw.tensor(dtype, shape))


@spec("nn.weighted_cross_entropy_with_logits", ulps=256)
def _weighted_cross_entropy(draw: Draw) -> None:
    shape, dtype = draw.shape(), draw.floating()
    draw.call(
        labels=draw.tensor(dtype, shape, "0..1"),
        logits=draw.tensor(dtype, shape),
        pos_weight=draw.number(0.5, 3),
    )


@spec("nn.log_poisson_loss", ulps=256)
def _log_poisson(draw: Draw) -> None:
    shape, dtype = draw.shape(), draw.floating()
    draw.call(draw.tensor(dtype, shape, "positive"), draw.tensor(dtype, shape), draw.chance(0.5))


@spec("nn.embedding_lookup")
def _embedding(draw: Draw) -> None:
    rows, rest = draw.integer(4, 9), draw.shape(0, 2, low=1)
    parts = draw.integer(1, 3)
    dtype = draw.floating()
    tables = [draw.tensor(dtype, (rows, *rest)) for _ in range(parts)]
    strategy = draw.choice("mod", "div")
    more = {"max_norm": draw.number(0.5, 2)} if draw.chance(0.3) else {}
    ids = draw.ints(draw.shape(0, 2), 0, rows * parts)
    draw.call(tables if parts > 1 else tables[0], ids, strategy, **more)


def sparse_ids(draw: Draw, rows: int, high: int) -> Code:
    """A SparseTensor of ids, a few in each row but the empty ones."""
    places = [
        (r, c) for r in range(rows) for c in range(draw.integer(0 if draw.chance(0.1) else 1, 3))
    ]
    index = draw.given(np.array(places or np.zeros((0, 2))), "int64")
    values = draw.ints((len(places),), 0, high, "int64")
    return Code(f"tf.SparseTensor({index}, {values}, [{rows}, 4])")


@spec("nn.embedding_lookup_sparse nn.safe_embedding_lookup_sparse", ulps=256)
def _embedding_sparse(draw: Draw) -> None:
    rows, depth = draw.integer(4, 9), draw.integer(1, 4)
    table = draw.tensor(draw.choice("float32", "float64"), (rows, depth))
    ids = sparse_ids(draw, draw.integer(1, 4), rows)
    draw.call(
        [table] if draw.function.startswith("nn.safe") else table,
        ids,
        None,
        combiner=draw.choice("sum", "mean", "sqrtn"),
    )


@spec("nn.ctc_loss", ulps=1024)
def _ctc_loss(draw: Draw) -> None:
    time, batch, classes = draw.integer(7, 9), draw.integer(1, 3), draw.integer(3, 6)
    labels = sparse_ids(draw, batch, classes - 1)
    x = draw.tensor("float32", (time, batch, classes))
    draw.call(labels, x, draw.given([time] * batch, "int32"), ctc_merge_repeated=draw.chance(0.7))


@spec("nn.ctc_greedy_decoder", ulps=256)
def _ctc_greedy(draw: Draw) -> None:
    time, batch, classes = draw.integer(2, 9), draw.integer(1, 3), draw.integer(3, 6)
    x = draw.tensor(draw.choice("float32", "float64"), (time, batch, classes))
    draw.call(
        x,
        draw.given([draw.integer(1, time) for _ in range(batch)], "int32"),
        merge_repeated=draw.chance(0.5),
    )


@spec("nn.ctc_beam_search_decoder", ulps=256)
def _ctc_beam(draw: Draw) -> None:
    time, batch, classes = draw.integer(2, 6), draw.integer(1, 2), draw.integer(3, 5)
    x = draw.tensor("float32", (time, batch, classes))
    draw.call(
        x,
        draw.given([time] * batch, "int32"),
        beam_width=draw.choice(100, 200),
        top_paths=1,
        merge_repeated=draw.chance(0.5),
    )


@spec("nn.collapse_repeated")
def _collapse(draw: Draw) -> None:
    rows, width = draw.integer(1, 4), draw.integer(1, 6)
    draw.call(draw.ints((rows, width), 0, 3, "int32"), draw.ints((rows,), 0, width + 1, "int32"))


@spec("nn.ctc_unique_labels")
def _ctc_unique(draw: Draw) -> None:
    draw.call(draw.ints((draw.integer(1, 4), draw.integer(1, 6)), 0, 4, "int32"))
