"""Ops that only move elements: those without effect, and pairs that cancel or combine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from thalweg.graph.dtypes import DType
from thalweg.optimize.facts import (
    integers,
    is_complex,
    is_filled,
    is_number,
    same_shape,
    value_of,
)
from thalweg.optimize.pattern import SymbolFunction, const, every, op
from thalweg.optimize.rule import EXACT, ROUNDING, Match, Rule

Sample = Mapping[str, Any]

_RESHAPING_MASKS = ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


# Conditions


def _is_shape_kept(match: Match, name: str = "x") -> bool:
    return same_shape(match.bound[name].shape, match.root.output.shape)


def _identity_order(match: Match) -> bool:
    order = integers(match.bound["p"])
    return order == list(range(len(order or ())))


def _moves_only_ones(match: Match) -> bool:
    """Whether all axes with more than one element keep their order."""
    sizes, order = match.bound["x"].shape.sizes, integers(match.bound["p"])
    if sizes is None or order is None or None in sizes:
        return False
    long = [axis for axis in order if sizes[axis] != 1]
    return long == sorted(long) and not _identity_order(match)


def _filled(name: str, number: int) -> Callable[[Match], bool]:
    """The condition that every element of a constant equals a number."""

    def when(match: Match) -> bool:
        return is_filled(match.bound[name], number)

    return when


def _keeps_all(match: Match) -> bool:
    return is_filled(match.bound["b"], 0) and _is_shape_kept(match)


def _is_plain_slice(match: Match) -> bool:
    masks = [match.bound["how"][name] for name in _RESHAPING_MASKS]
    steps = integers(match.bound["s"])
    return not any(masks) and steps is not None and {*steps} <= {1} and _is_shape_kept(match)


def _has_only_ones(match: Match) -> bool:
    """Whether all axes in `a` have one element."""
    sizes, axes = match.bound["x"].shape.sizes, integers(match.bound["a"])
    if sizes is None or axes is None:
        return False
    return all(-len(sizes) <= axis < len(sizes) and sizes[axis] == 1 for axis in axes)


def _is_same_dtype(match: Match) -> bool:
    return match.bound["x"].dtype.base_dtype is match.bound["to"]


def _is_lossless(source: DType, wide: DType) -> bool:
    """Whether every number of a dtype is representable in another."""
    source_type, wide_type = source.as_numpy_dtype, wide.as_numpy_dtype
    if source.is_floating and wide.is_floating:
        return source is wide or (source.size < wide.size and not source.traits.is_narrow_float)
    are_integers = source.is_integer and wide.is_integer
    return are_integers and np.can_cast(source_type, wide_type, "safe")


def _is_detour(match: Match) -> bool:
    source = match.bound["x"].dtype.base_dtype
    return _is_lossless(source, match.bound["wide"]) and not source.is_bool


def _all_true(match: Match) -> bool:
    return is_filled(match.bound["c"], 1) and _is_shape_kept(match)


def _all_false(match: Match) -> bool:
    return is_filled(match.bound["c"], 0) and _is_shape_kept(match, "y")


def _squeezes_the_same(match: Match) -> bool:
    axes = integers(match.bound["a"])
    return axes is not None and tuple(axes) == tuple(match.bound["dims"])


# Replacements


def _without_axes(x: Any, a: Any, keep: bool) -> Any:
    axes = integers(a) or []
    if keep or not axes:
        return x
    return op.Squeeze(x, squeeze_dims=tuple(sorted({axis % x.shape.rank for axis in axes})))


def _composed(x: Any, p: Any, q: Any) -> Any:
    inner, outer = value_of(p), value_of(q)
    assert inner is not None and outer is not None
    return op.Transpose(x, inner[outer].astype(np.int32))


def _reshaped(x: Any, p: Any) -> Any:
    sizes = x.shape.as_list()
    return op.Reshape(x, np.array([sizes[axis] for axis in integers(p) or ()], np.int32))


# What the tests draw


def _permuted(rng: Any) -> Sample:
    rank = int(rng.integers(1, 5))
    x = rng.normal(size=tuple(rng.integers(1, 4, rank)))
    return {"x": x, **{name: rng.permutation(rank).astype(np.int32) for name in "pq"}}


def _plain(rng: Any) -> Sample:
    sample = dict(_permuted(rng))
    rank = sample["x"].ndim
    return sample | {
        "p": np.arange(rank, dtype=np.int32),
        "b": np.zeros(rank, np.int32),
        "e": np.array(sample["x"].shape, np.int32),
        "s": np.ones(rank, np.int32),
        "z": np.zeros([rank, 2], np.int32),
        "m": np.ones(rank, np.int32),
        "shape": np.array(sample["x"].shape, np.int32),
        "how": dict.fromkeys(("begin_mask", "end_mask", *_RESHAPING_MASKS), 0),
    }


def _with_ones(rng: Any) -> Sample:
    x = rng.normal(size=(1, int(rng.integers(1, 5)), 1))
    return {
        "x": x,
        "a": np.array([0, -1], np.int32),
        "keep": bool(rng.integers(2)),
        "p": np.array([1, 2, 0], np.int32),
    }


def _reshapes(rng: Any) -> Sample:
    x = rng.normal(size=(2, 3, int(rng.integers(1, 4))))
    return {"x": x, "s": np.array([-1], np.int32), "t": np.array([3, -1], np.int32)}


def _matrix(rng: Any) -> Sample:
    return {"x": rng.normal(size=(2, 3)), "s": [1, 0]}


def _expanded(rng: Any) -> Sample:
    return {"x": rng.normal(size=(2, 3)), "a": np.array(1, np.int32), "dims": (1,)}


def _chosen(rng: Any, holds: bool) -> Sample:
    shape = tuple(rng.integers(1, 4, 2))
    return {"c": np.full(shape, holds), "x": rng.normal(size=shape), "y": rng.normal(size=shape)}


def _no_op(
    name: str,
    pattern: SymbolFunction,
    when: Callable[[Match], bool],
    sample: Callable[[Any], Sample] | None = _plain,
) -> Rule:
    """A rule for an op that returns x unchanged."""
    return Rule(name, pattern, lambda x: x, when, sample=sample)


_REDUCTIONS = ("Sum", "Mean", "Prod", "Max", "Min")

RULES = (
    _no_op("reshape to itself", lambda x, shape: op.Reshape(x, shape), _is_shape_kept),
    Rule("reshape to its own shape", lambda x: op.Reshape(x, op.Shape(x)), lambda x: x),
    Rule(
        "reshape twice",
        lambda x, s, t: op.Reshape(op.Reshape(x, s), t),
        lambda x, t: op.Reshape(x, t),
        sample=_reshapes,
    ),
    _no_op("broadcast to itself", lambda x, shape: op.BroadcastTo(x, const(shape)), _is_shape_kept),
    Rule("broadcast to its own shape", lambda x: op.BroadcastTo(x, op.Shape(x)), lambda x: x),
    _no_op("transpose nothing", lambda x, p: op.Transpose(x, const(p)), _identity_order),
    Rule(
        "transpose twice",
        lambda x, p, q: op.Transpose(op.Transpose(x, const(p)), const(q)),
        _composed,
        sample=_permuted,
    ),
    Rule(
        "transpose of axes of one element",
        lambda x, p: op.Transpose(x, const(p)),
        _reshaped,
        _moves_only_ones,
        sample=_with_ones,
    ),
    _no_op("slice all", lambda x, b, e: op.Slice(x, const(b), const(e)), _keeps_all),
    _no_op(
        "strided slice of all",
        lambda x, b, e, s, how: op.StridedSlice(x, const(b), const(e), const(s), **every(how)),
        _is_plain_slice,
    ),
    _no_op("tile once", lambda x, m: op.Tile(x, const(m)), _filled("m", 1)),
    _no_op("pad nothing", lambda x, z: op.Pad(x, const(z)), _filled("z", 0)),
    _no_op(
        "reverse axes of one element",
        lambda x, a: op.ReverseV2(x, const(a)),
        _has_only_ones,
        _with_ones,
    ),
    *(
        Rule(
            f"{kind.lower()} over axes of one element",
            lambda x, a, keep, kind=kind: getattr(op, kind)(x, const(a), keep_dims=keep),
            _without_axes,
            _has_only_ones,
            is_number,
            sample=_with_ones,
            exactness=ROUNDING if kind in ("Sum", "Mean") else EXACT,  # the sum of -0 alone is 0
        )
        for kind in _REDUCTIONS
    ),
    _no_op(
        "squeeze what was expanded",
        lambda x, a, dims: op.Squeeze(op.ExpandDims(x, const(a)), squeeze_dims=dims),
        _squeezes_the_same,
        _expanded,
    ),
    _no_op(
        "squeeze nothing",
        lambda x, dims: op.Squeeze(x, squeeze_dims=dims),
        _is_shape_kept,
        lambda rng: {"x": rng.normal(size=(2, 3)), "dims": ()},
    ),
    Rule(
        "split into one",
        lambda x, a: op.Split(const(a), x, num_split=1),
        lambda x: [x],
        sample=lambda rng: {"x": rng.normal(size=(2, 3)), "a": np.array(0, np.int32)},
    ),
    Rule(
        "split into one of a size",
        lambda x, s, a: op.SplitV(x, const(s), const(a), num_split=1),
        lambda x: [x],
        sample=lambda rng: {
            "x": rng.normal(size=(2, 3)),
            "s": np.array([3], np.int32),
            "a": np.array(1, np.int32),
        },
    ),
    Rule(
        "conjugate of a transpose",
        lambda x, p: op.Conj(op.Transpose(x, p)),
        op.ConjugateTranspose,
        dtypes=is_complex,
        sample=_permuted,
    ),
    Rule(
        "transpose of a conjugate",
        lambda x, p: op.Transpose(op.Conj(x), p),
        op.ConjugateTranspose,
        dtypes=is_complex,
        sample=_permuted,
    ),
    Rule(
        "conjugate of a conjugate transpose",
        lambda x, p: op.Conj(op.ConjugateTranspose(x, p)),
        op.Transpose,
        dtypes=is_complex,
        sample=_permuted,
    ),
    *(
        Rule(
            f"negation around {kind.lower()}",
            lambda x, s, kind=kind: op.Neg(getattr(op, kind)(op.Neg(x), s)),
            lambda x, s, kind=kind: getattr(op, kind)(x, s),
            dtypes=is_number,
            sample=sample,
        )
        for kind, sample in (
            ("Reshape", _reshapes),
            ("Transpose", _matrix),
        )
    ),
    _no_op("cast to its own dtype", lambda x, to: op.Cast(x, DstT=to), _is_same_dtype, None),
    Rule(
        "cast through a wider dtype",
        lambda x, wide, to: op.Cast(op.Cast(x, DstT=wide), DstT=to),
        lambda x, to: op.Cast(x, DstT=to),
        _is_detour,
    ),
    _no_op("bitcast to its own dtype", lambda x, to: op.Bitcast(x, type=to), _is_same_dtype, None),
    Rule(
        "bitcast twice",
        lambda x, via, to: op.Bitcast(op.Bitcast(x, type=via), type=to),
        lambda x, to: op.Bitcast(x, type=to),
    ),
    Rule(
        "select of what is true",
        lambda c, x, y: op.Select(const(c), x, y),
        lambda x: x,
        _all_true,
        sample=lambda rng: _chosen(rng, True),
    ),
    Rule(
        "select of what is false",
        lambda c, x, y: op.Select(const(c), x, y),
        lambda y: y,
        _all_false,
        sample=lambda rng: _chosen(rng, False),
    ),
)
