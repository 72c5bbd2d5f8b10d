"""Functions of shape and place: reshape, transpose, slice, gather, scatter, pad, tile, join."""

from __future__ import annotations

from typing import Any

import numpy as np

from tools.fuzz_tf.draw import Code, Draw, spec


def _index(draw: Draw, value: Any) -> Any:
    """A list of integers as it is, or as a tensor."""
    return (
        draw.given(np.reshape(value, np.shape(value)), draw.choice("int32", "int64"))
        if draw.chance(0.3)
        else value
    )


@spec("reshape")
def _reshape(draw: Draw) -> None:
    shape = draw.shape()
    size = int(np.prod(shape))
    new: list[int] = []
    while size > 1 and draw.chance(0.8):
        part = draw.choice(*[d for d in range(1, size + 1) if size % d == 0])
        new.append(part)
        size //= part
    new.append(draw.choice(size, -1) if size else 0)
    draw.call(draw.tensor(draw.anything(), shape), _index(draw, new))


@spec("transpose")
def _transpose(draw: Draw) -> None:
    shape = draw.shape(0, 5, high=7)
    more = (
        {"perm": _index(draw, draw.rng.permutation(len(shape)).tolist())}
        if draw.chance(0.7) and shape
        else {}
    )
    more |= {"conjugate": True} if draw.chance(0.2) else {}
    draw.call(draw.tensor(draw.anything(), shape), **more)


@spec("expand_dims")
def _expand(draw: Draw) -> None:
    shape = draw.shape()
    draw.call(draw.tensor(draw.anything(), shape), draw.integer(-len(shape) - 1, len(shape)))


@spec("squeeze")
def _squeeze(draw: Draw) -> None:
    shape = tuple(1 if draw.chance(0.5) else n for n in draw.shape())
    ones = [i for i, n in enumerate(shape) if n == 1]
    axes = (
        {"axis": [draw.choice(i, i - len(shape)) for i in ones if draw.chance(0.6)]}
        if draw.chance(0.5)
        else {}
    )
    draw.call(draw.tensor(draw.anything(), shape), **axes)


@spec("reverse")
def _reverse(draw: Draw) -> None:
    shape = draw.shape(1)
    axes = draw.rng.permutation(len(shape))[: draw.integer(0, len(shape))].tolist()
    draw.call(draw.tensor(draw.anything(), shape), axes or [0])


@spec("reverse_sequence")
def _reverse_sequence(draw: Draw) -> None:
    shape = draw.shape(2, 4, low=1)
    batch, seq = draw.choice((0, 1), (1, 0))
    lengths = draw.ints((shape[batch],), 0, shape[seq] + 1)
    draw.call(draw.tensor(draw.anything(), shape), lengths, seq_axis=seq, batch_axis=batch)


@spec("tile")
def _tile(draw: Draw) -> None:
    shape = draw.shape(0, 3, high=9)
    draw.call(
        draw.tensor(draw.anything(), shape),
        _index(draw, [draw.integer(0, 3) for _ in shape] or np.zeros(0, int))
        if shape
        else Code("np.zeros([0], np.int32)"),
    )


@spec("pad")
def _pad(draw: Draw) -> None:
    shape = draw.shape(1, 4, low=3, high=9)
    pads = [[draw.integer(0, 2), draw.integer(0, 2)] for _ in shape]
    mode = draw.choice("CONSTANT", "REFLECT", "SYMMETRIC", "constant")
    more = {"constant_values": 7} if mode == "CONSTANT" and draw.chance(0.4) else {}
    dtype = draw.numeric()
    draw.call(draw.tensor(dtype, shape), _index(draw, pads), mode=mode, **more)


@spec("concat")
def _concat(draw: Draw) -> None:
    shape, dtype = draw.shape(1, 4), draw.anything()
    axis = draw.axis(len(shape))
    parts = []
    for _ in range(draw.integer(1, 4)):
        part = list(shape)
        part[axis] = draw.length(0, 9)
        parts.append(draw.tensor(dtype, part))
    draw.call(parts, axis)


@spec("stack parallel_stack")
def _stack(draw: Draw) -> None:
    shape, dtype = draw.shape(), draw.anything()
    parts = [draw.tensor(dtype, shape) for _ in range(draw.integer(1, 4))]
    axis = {"axis": draw.integer(-len(shape) - 1, len(shape))} if draw.function == "stack" else {}
    draw.call(parts, **axis)


@spec("unstack")
def _unstack(draw: Draw) -> None:
    shape = draw.shape(1, 4)
    axis = draw.axis(len(shape))
    draw.call(draw.tensor(draw.anything(), shape), num=shape[axis], axis=axis)


@spec("split")
def _split(draw: Draw) -> None:
    shape = list(draw.shape(1, 3))
    axis = draw.axis(len(shape))
    if draw.chance(0.5):
        pieces: Any = draw.integer(1, 4)
        shape[axis] = pieces * draw.integer(0, 3)
    else:
        pieces = [draw.integer(0, 4) for _ in range(draw.integer(1, 4))]
        shape[axis] = sum(pieces)
        if draw.chance(0.3):
            pieces[0] = -1
    draw.call(draw.tensor(draw.anything(), shape), pieces, axis)


@spec("slice")
def _slice(draw: Draw) -> None:
    shape = draw.shape(1, 4)
    begin = [draw.integer(0, n) for n in shape]
    size = [draw.choice(-1, draw.integer(0, n - b)) for n, b in zip(shape, begin, strict=True)]
    x = draw.tensor(draw.anything(), shape)
    if draw.chance(0.4):
        draw.call(x, draw.given(begin, "int32"), draw.given(size, "int32"))
    else:
        draw.call(x, begin, size)


@spec("strided_slice")
def _strided_slice(draw: Draw) -> None:
    shape = draw.shape(1, 4)
    ends = [sorted((draw.integer(-n - 1, n + 1), draw.integer(-n - 1, n + 1))) for n in shape]
    strides = [draw.choice(1, 1, 2, 3, -1, -2) for _ in shape]
    begin = [e[0] if s > 0 else e[1] for e, s in zip(ends, strides, strict=True)]
    end = [e[1] if s > 0 else e[0] for e, s in zip(ends, strides, strict=True)]
    masks = {
        f"{name}_mask": draw.integer(0, 2 ** len(shape) - 1)
        for name in ("begin", "end")
        if draw.chance(0.4)
    }
    masks |= {"shrink_axis_mask": 1} if draw.chance(0.2) else {}
    draw.call(draw.tensor(draw.anything(), shape), _index(draw, begin), end, strides, **masks)


@spec("Tensor:getitem")
def _getitem(draw: Draw) -> None:
    shape = draw.shape(1, 4, low=1)
    parts = []
    for n in shape[: draw.integer(1, len(shape))]:
        bound = lambda n=n: draw.choice("", str(draw.integer(-n, n)))  # noqa: E731
        step = draw.choice("", "", ":2", ":-1", ":3")
        parts.append(draw.choice(str(draw.integer(-n, n - 1)), f"{bound()}:{bound()}{step}", ":"))
    if draw.chance(0.3):
        parts.insert(draw.integer(0, len(parts)), "tf.newaxis")
    if draw.chance(0.3):
        parts.insert(draw.integer(0, len(parts)), "...")
    draw.line(f"{draw.tensor(draw.anything(), shape)}[{', '.join(parts)}]")


@spec("gather")
def _gather(draw: Draw) -> None:
    shape = draw.shape(1, 4, low=1)
    axis = draw.axis(len(shape))
    more: dict[str, Any] = {"axis": axis} if draw.chance(0.6) else {}
    picked = shape[axis] if more else shape[0]
    indices = draw.shape(0, 2, high=5)
    if axis >= 0 and more and draw.chance(0.3):
        dims = draw.integer(0, axis)
        more["batch_dims"] = dims
        indices = (*shape[:dims], *draw.shape(0, 1, high=5))
    x = draw.tensor(draw.anything(), shape)
    draw.call(x, draw.ints(indices, -1 if draw.chance(0.05) else 0, picked), **more)


@spec("batch_gather")
def _batch_gather(draw: Draw) -> None:
    shape = draw.shape(2, 3, low=1)
    draw.call(draw.tensor(draw.anything(), shape), draw.ints((shape[0], 3), 0, shape[1]))


@spec("gather_nd")
def _gather_nd(draw: Draw) -> None:
    shape = draw.shape(1, 4, low=1)
    depth = draw.integer(0, len(shape))
    rows = draw.shape(0, 2, high=5)
    index = [draw.rng.integers(0, n, rows) for n in shape[:depth]]
    made = np.stack(index, -1) if index else np.zeros((*rows, 0), int)
    draw.call(draw.tensor(draw.anything(), shape), draw.given(made, draw.choice("int32", "int64")))


@spec("scatter_nd")
def _scatter_nd(draw: Draw) -> None:
    shape = draw.shape(1, 4, low=1)
    depth = draw.integer(1, len(shape))
    rows = draw.shape(1, 2, high=5)
    index = np.stack([draw.rng.integers(0, n, rows) for n in shape[:depth]], -1)
    dtype = draw.choice("int32", "int64")
    indices = draw.given(index, dtype)
    draw.call(
        indices, draw.tensor(draw.numeric(), (*rows, *shape[depth:])), draw.given(shape, dtype)
    )


@spec(
    "tensor_scatter_nd_update tensor_scatter_nd_add tensor_scatter_nd_sub"
    " tensor_scatter_nd_max tensor_scatter_nd_min"
)
def _tensor_scatter(draw: Draw) -> None:
    shape = draw.shape(1, 3, low=1)
    rows = (min(shape[0], 3),)
    index = draw.rng.permutation(shape[0])[: rows[0], None]
    dtype = draw.numeric()
    x = draw.tensor(dtype, shape)
    draw.call(x, draw.given(index, "int32"), draw.tensor(dtype, (*rows, *shape[1:])))


@spec("boolean_mask")
def _boolean_mask(draw: Draw) -> None:
    shape = draw.shape(1, 3, low=1)
    axis = draw.integer(0, len(shape) - 1)
    rank = draw.integer(1, len(shape) - axis)
    mask = draw.choice(0, 1)
    x = draw.tensor(draw.anything(), shape)
    chosen = draw.rng.integers(0, 2, shape[axis : axis + rank]).astype(bool)
    # The rank of a mask must be static.
    given = (
        Code(f"np.array({chosen.tolist()}, bool)")
        if mask
        else Code(f"tf.constant({chosen.tolist()}, tf.bool)")
    )
    draw.call(x, given, axis=axis)


@spec("one_hot")
def _one_hot(draw: Draw) -> None:
    shape, depth = draw.shape(0, 3, high=9), draw.integer(0, 6)
    more: dict[str, Any] = {}
    if draw.chance(0.4):
        more = {"on_value": 5, "off_value": 2, "dtype": Code(f"tf.{draw.numeric()}")}
    if draw.chance(0.5):
        more["axis"] = draw.integer(-1, len(shape))
    draw.call(draw.ints(shape, -1, 7, draw.choice("int32", "int64", "uint8")), depth, **more)


@spec("roll manip.roll")
def _roll(draw: Draw) -> None:
    shape = draw.shape(1, 3)
    if draw.chance(0.5):
        draw.call(draw.tensor(draw.numeric(), shape), draw.integer(-9, 9), draw.axis(len(shape)))
    else:
        axes = [draw.axis(len(shape)) for _ in range(2)]
        draw.call(draw.tensor(draw.numeric(), shape), [draw.integer(-9, 9) for _ in axes], axes)


@spec("repeat")
def _repeat(draw: Draw) -> None:
    shape = draw.shape(1, 3, low=1, high=9)
    axis = draw.choice(None, draw.integer(0, len(shape) - 1))
    if draw.chance(0.5):
        draw.call(draw.tensor(draw.numeric(), shape), draw.integer(0, 3), axis)
    else:
        count = int(np.prod(shape)) if axis is None else shape[axis]
        draw.call(
            draw.tensor(draw.numeric(), shape), [draw.integer(0, 3) for _ in range(count)], axis
        )


@spec("broadcast_to")
def _broadcast_to(draw: Draw) -> None:
    one, two = draw.broadcast_pair()
    small, large = sorted((one, two), key=lambda s: (len(s), np.prod(s)))
    draw.call(draw.tensor(draw.numeric(), small), list(large) or Code("np.zeros([0], np.int32)"))


@spec("fill")
def _fill(draw: Draw) -> None:
    shape = draw.shape(1, 3)
    draw.call(_index(draw, list(shape)), draw.tensor(draw.anything(), ()))


@spec("zeros ones")
def _zeros(draw: Draw) -> None:
    draw.call(_index(draw, list(draw.shape(1, 3))), Code(f"tf.{draw.numeric()}"))


@spec("eye linalg.eye")
def _eye(draw: Draw) -> None:
    more: dict[str, Any] = {"batch_shape": [2, 3]} if draw.chance(0.3) else {}
    more |= {"num_columns": draw.integer(1, 5)} if draw.chance(0.4) else {}
    draw.call(draw.integer(0, 5), dtype=Code(f"tf.{draw.numeric()}"), **more)


@spec("range")
def _range(draw: Draw) -> None:
    dtype = draw.choice("int32", "int64", "float32", "float64")
    start, limit = draw.integer(-5, 5), draw.integer(-5, 12)
    step = draw.choice(1, 2, 3) if limit >= start else draw.choice(-1, -2)
    draw.call(draw.given(start, dtype), draw.given(limit, dtype), draw.given(step, dtype))


@spec("linspace lin_space", ulps=32)
def _linspace(draw: Draw) -> None:
    dtype = draw.floating()
    draw.call(draw.tensor(dtype, ()), draw.tensor(dtype, ()), draw.integer(1, 20))


@spec("meshgrid")
def _meshgrid(draw: Draw) -> None:
    dtype = draw.numeric()
    parts = [draw.tensor(dtype, (draw.length(1, 5),)) for _ in range(draw.integer(1, 3))]
    draw.call(*parts, indexing=draw.choice("xy", "ij"))


@spec("sequence_mask")
def _sequence_mask(draw: Draw) -> None:
    lengths = draw.ints(draw.shape(0, 2, high=5), 0, 7)
    more: dict[str, Any] = (
        {"dtype": Code(f"tf.{draw.choice('float32', 'int32', 'bool')}")} if draw.chance(0.4) else {}
    )
    draw.call(lengths, draw.choice(None, 7, 3), **more)


@spec("invert_permutation")
def _invert_permutation(draw: Draw) -> None:
    draw.call(draw.given(draw.rng.permutation(draw.length(0)), draw.choice("int32", "int64")))


@spec("dynamic_partition")
def _dynamic_partition(draw: Draw) -> None:
    shape = draw.shape(1, 3)
    rank = draw.integer(1, len(shape))
    x = draw.tensor(draw.anything(), shape)
    draw.call(x, draw.ints(shape[:rank], 0, 3, "int32"), 3)


@spec("dynamic_stitch parallel_dynamic_stitch")
def _dynamic_stitch(draw: Draw) -> None:
    count, dtype = draw.integer(2, 8), draw.anything()
    order, cut, rest = draw.rng.permutation(count), draw.integer(0, count), draw.shape(0, 1)
    indices = [draw.given(part, "int32") for part in (order[:cut], order[cut:])]
    draw.call(indices, [draw.tensor(dtype, (n, *rest)) for n in (cut, count - cut)])


@spec("space_to_depth depth_to_space")
def _space_depth(draw: Draw) -> None:
    block = draw.choice(2, 3)
    n, h, w, c = draw.integer(1, 2), draw.integer(1, 3), draw.integer(1, 3), draw.integer(1, 3)
    shape = (
        (n, h * block, w * block, c)
        if draw.function.startswith("space")
        else (n, h, w, c * block * block)
    )
    draw.call(draw.tensor(draw.numeric(), shape), block)


@spec("space_to_batch_nd")
def _space_to_batch(draw: Draw) -> None:
    block = [draw.integer(1, 3), draw.integer(1, 3)]
    pads = [[draw.integer(0, 2), 0] for _ in block]
    sizes = [b * draw.integer(1, 3) for b in block]
    for pad, size, b in zip(pads, sizes, block, strict=True):
        pad[1] = (-(size + pad[0])) % b
    draw.call(
        draw.tensor(draw.numeric(), (draw.integer(1, 2), *sizes, draw.integer(1, 3))),
        _index(draw, block),
        pads,
    )


@spec("batch_to_space_nd")
def _batch_to_space(draw: Draw) -> None:
    block = [draw.integer(1, 2), draw.integer(1, 3)]
    crops = [[draw.integer(0, 1), draw.integer(0, 1)] for _ in block]
    shape = (block[0] * block[1] * draw.integer(1, 2), draw.integer(2, 3), draw.integer(2, 3), 2)
    draw.call(draw.tensor(draw.numeric(), shape), _index(draw, block), crops)


@spec("extract_image_patches image.extract_patches")
def _patches(draw: Draw) -> None:
    x = draw.tensor(
        draw.numeric(),
        (draw.integer(1, 2), draw.integer(4, 9), draw.integer(4, 9), draw.integer(1, 3)),
    )
    draw.call(
        x,
        sizes=[1, draw.integer(1, 3), draw.integer(1, 3), 1],
        strides=[1, draw.integer(1, 3), draw.integer(1, 3), 1],
        rates=[1, draw.integer(1, 2), draw.integer(1, 2), 1],
        padding=draw.choice("SAME", "VALID"),
    )


@spec("unravel_index")
def _unravel(draw: Draw) -> None:
    dims = [draw.integer(1, 5) for _ in range(draw.integer(1, 3))]
    dtype = draw.choice("int32", "int64")
    draw.call(draw.ints(draw.shape(0, 1), 0, int(np.prod(dims)), dtype), draw.given(dims, dtype))


@spec("ensure_shape")
def _ensure_shape(draw: Draw) -> None:
    shape = draw.shape()
    wanted = [None if draw.chance(0.4) else n + draw.chance(0.05) for n in shape]
    draw.call(
        draw.tensor(draw.anything(), shape), [int(n) if n is not None else None for n in wanted]
    )


@spec("shape_n identity_n tuple")
def _many(draw: Draw) -> None:
    draw.call([draw.tensor(draw.anything(), draw.shape()) for _ in range(draw.integer(1, 3))])


@spec("required_space_to_batch_paddings")
def _required(draw: Draw) -> None:
    count = draw.integer(1, 3)
    draw.call(draw.ints((count,), 1, 9, "int32"), draw.ints((count,), 1, 4, "int32"))


@spec("broadcast_dynamic_shape")
def _dynamic_shape(draw: Draw) -> None:
    one, two = draw.broadcast_pair()
    draw.call(draw.given(np.array(one), "int32"), draw.given(np.array(two), "int32"))


@spec("diag linalg.tensor_diag")
def _diag(draw: Draw) -> None:
    draw.call(
        draw.tensor(
            draw.choice("float32", "float64", "int32", "int64", "complex64"),
            draw.shape(1, 2, high=5),
        )
    )


@spec("diag_part linalg.tensor_diag_part")
def _diag_part(draw: Draw) -> None:
    shape = draw.shape(1, 2, high=4)
    draw.call(
        draw.tensor(draw.choice("float32", "float64", "int32", "int64", "complex64"), shape * 2)
    )


@spec("matrix_diag matrix_diag_part linalg.diag_part")
def _matrix_diag(draw: Draw) -> None:
    least = 1 if draw.function == "matrix_diag" else 2
    draw.call(draw.tensor(draw.numeric(), draw.shape(least, 3, low=1, high=6)))


@spec("matrix_set_diag")
def _set_diag(draw: Draw) -> None:
    shape, dtype = draw.shape(2, 3, low=1, high=6), draw.numeric()
    draw.call(draw.tensor(dtype, shape), draw.tensor(dtype, (*shape[:-2], min(shape[-2:]))))


@spec("matrix_band_part")
def _band(draw: Draw) -> None:
    shape = draw.shape(2, 3, high=6)
    draw.call(
        draw.tensor(draw.numeric(), shape),
        draw.integer(-1, min(shape[-2:])),
        draw.integer(-1, min(shape[-2:])),
    )


@spec("linalg.matrix_transpose linalg.adjoint")
def _matrix_transpose(draw: Draw) -> None:
    draw.call(draw.tensor(draw.choice(draw.numeric(), "complex64"), draw.shape(2, 4, high=6)))


@spec("trace")
def _trace(draw: Draw) -> None:
    draw.call(draw.tensor(draw.floating(), draw.shape(2, 3, low=1, high=6)))
