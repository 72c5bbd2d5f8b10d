"""Assertions about arrays and nested structures of them, as methods to mix into a test case.

Tensors among the arguments are evaluated first. A failure says where the values differ, what they
are there, and by how much.
"""

from __future__ import annotations

import math
import unittest
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from thalweg.graph.likes import Structure
from thalweg.graph.node import Tensor
from thalweg.platform.arrays import Array
from thalweg.platform.dtype_traits import widened


class ArrayAssertions(unittest.TestCase):
    """Closeness, order, range and shape of arrays."""

    def evaluate(self, tensors: Structure) -> Structure:
        """The values of tensors; test cases with a session say how."""
        raise ValueError(f"{tensors!r} has no value outside a session")

    def array(self, value: Any) -> Array:
        """A value as an array: tensors are evaluated, small floats widened so that they compare."""
        if _is_symbolic(value):
            value = self.evaluate(value)
        array = np.asarray(value)
        return widened(array) if array.dtype.kind == "V" else array

    def assertFalse(self, expr: object, msg: object = None) -> None:
        """A value is false; so is an array without elements, as it was in NumPy 1."""
        if not (isinstance(expr, np.ndarray) and expr.size == 0):
            super().assertFalse(expr, msg)

    # Closeness

    def assertNear(self, f1: float, f2: float, err: float, msg: str | None = None) -> None:
        """|f1 - f2| <= err"""
        near = f1 == f2 or math.fabs(f1 - f2) <= err
        self.assertTrue(near, f"{f1!r} != {f2!r} +/- {err!r}{_note(msg)}")

    def assertArrayNear(
        self, farray1: Sequence[Any], farray2: Sequence[Any], err: float, msg: str | None = None
    ) -> None:
        """Each pair of elements differs by at most `err`."""
        self.assertEqual(len(farray1), len(farray2), msg)
        for one, other in zip(farray1, farray2, strict=True):
            self.assertNear(float(one), float(other), err, msg)

    def assertNDArrayNear(
        self, ndarray1: Any, ndarray2: Any, err: float, msg: str | None = None
    ) -> None:
        """The norm of the difference is below `err`."""
        distance = np.linalg.norm(self.array(ndarray1) - self.array(ndarray2))
        self.assertTrue(distance < err, f"the arrays are {distance} apart{_note(msg)}")

    def assertAllClose(
        self,
        a: Structure,
        b: Structure,
        rtol: float = 1e-6,
        atol: float = 1e-6,
        msg: str | None = None,
    ) -> None:
        """|a - b| <= atol + rtol |b| everywhere, through dicts, lists and tuples of arrays."""
        if isinstance(a, Mapping) or isinstance(b, Mapping):
            self._all_close_by_key(a, b, rtol, atol, msg)
        elif _is_ragged(a) or _is_ragged(b):
            self._all_close_by_item(a, b, rtol, atol, msg)
        else:
            self._arrays_close(self.array(a), self.array(b), rtol, atol, msg)

    def _all_close_by_key(self, a: Any, b: Any, rtol: float, atol: float, msg: str | None) -> None:
        for value in (a, b):
            self.assertIsInstance(value, Mapping, f"{a!r} against {b!r}{_note(msg)}")
        self.assertCountEqual(a, b, f"the keys differ{_note(msg)}")
        for key in a:
            self.assertAllClose(a[key], b[key], rtol, atol, f"at [{key!r}]{_note(msg)}")

    def _all_close_by_item(self, a: Any, b: Any, rtol: float, atol: float, msg: str | None) -> None:
        self.assertEqual(len(a), len(b), f"the lengths differ{_note(msg)}")
        for index, (one, other) in enumerate(zip(a, b, strict=True)):
            self.assertAllClose(one, other, rtol, atol, f"at [{index}]{_note(msg)}")

    def _arrays_close(
        self, a: Array, b: Array, rtol: float, atol: float, msg: str | None = None
    ) -> None:
        self._assert_same_shape(a, b, msg)
        with np.errstate(all="ignore"):
            if not np.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True):
                far = ~np.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
                self.fail(_difference("not close", a, b, far, msg) + f"\nrtol={rtol}, atol={atol}")

    def assertAllCloseAccordingToType(
        self,
        a: Structure,
        b: Structure,
        rtol: float = 1e-6,
        atol: float = 1e-6,
        float_rtol: float = 1e-6,
        float_atol: float = 1e-6,
        half_rtol: float = 1e-3,
        half_atol: float = 1e-3,
        bfloat16_rtol: float = 1e-2,
        bfloat16_atol: float = 1e-2,
        msg: str | None = None,
    ) -> None:
        """`assertAllClose`, with tolerances no tighter than the narrower dtype allows."""
        tolerances = {
            "float32": (float_rtol, float_atol),
            "complex64": (float_rtol, float_atol),
            "float16": (half_rtol, half_atol),
            "bfloat16": (bfloat16_rtol, bfloat16_atol),
        }
        for value in (a, b):
            least = tolerances.get(self._dtype_name(value), (0.0, 0.0))
            rtol, atol = max(rtol, least[0]), max(atol, least[1])
        self.assertAllClose(a, b, rtol, atol, msg)

    def _dtype_name(self, value: Any) -> str:
        dtype = value.dtype if hasattr(value, "dtype") else self.array(value).dtype
        return str(getattr(dtype, "name", dtype)).removesuffix("_ref")

    def assertNotAllClose(self, a: Structure, b: Structure, **tolerances: Any) -> None:
        """Some element is not close."""
        try:
            self.assertAllClose(a, b, **tolerances)
        except AssertionError:
            return
        self.fail("The two values are close at all elements.")

    def assertAllEqual(self, a: Any, b: Any, msg: str | None = None) -> None:
        """Equal shapes and values; NaN equals NaN."""
        a, b = self.array(a), self.array(b)
        self._assert_same_shape(a, b, msg)
        same = np.asarray(a == b)
        if a.dtype.kind in "fc" and b.dtype.kind in "fc":
            same = same | (np.isnan(a) & np.isnan(b))
        if not np.all(same):
            self.fail(_difference("not equal", a, b, ~same, msg))

    def assertNotAllEqual(self, a: Any, b: Any, msg: str | None = None) -> None:
        """Some element differs."""
        try:
            self.assertAllEqual(a, b)
        except AssertionError:
            return
        self.fail(f"The two values are equal at all elements.{_note(msg)}")

    def _assert_same_shape(self, a: Array, b: Array, msg: str | None) -> None:
        if a.shape != b.shape:
            self.fail(
                f"Shape mismatch: expected {a.shape}, got {b.shape}.{_note(msg)}\n"
                f"Contents: {_brief(a)}\nagainst: {_brief(b)}"
            )

    # Order and range

    def assertAllGreater(self, a: Any, comparison_target: ArrayLike) -> None:
        """Every element is greater than the target."""
        a = self.array(a)
        self._assert_where(a > comparison_target, a, f"> {comparison_target!r}")

    def assertAllGreaterEqual(self, a: Any, comparison_target: ArrayLike) -> None:
        """No element is less than the target."""
        a = self.array(a)
        self._assert_where(a >= comparison_target, a, f">= {comparison_target!r}")

    def assertAllLess(self, a: Any, comparison_target: ArrayLike) -> None:
        """Every element is less than the target."""
        a = self.array(a)
        self._assert_where(a < comparison_target, a, f"< {comparison_target!r}")

    def assertAllLessEqual(self, a: Any, comparison_target: ArrayLike) -> None:
        """No element is greater than the target."""
        a = self.array(a)
        self._assert_where(a <= comparison_target, a, f"<= {comparison_target!r}")

    def assertAllInRange(
        self,
        target: Any,
        lower_bound: ArrayLike,
        upper_bound: ArrayLike,
        open_lower_bound: bool = False,
        open_upper_bound: bool = False,
    ) -> None:
        """Every element lies between the bounds; NaN lies nowhere."""
        a = self.array(target)
        above = a > lower_bound if open_lower_bound else a >= lower_bound
        below = a < upper_bound if open_upper_bound else a <= upper_bound
        left, right = "(["[not open_lower_bound], ")]"[not open_upper_bound]
        self._assert_where(above & below, a, f"in {left}{lower_bound}, {upper_bound}{right}")

    def assertAllInSet(self, target: Any, expected_set: Iterable[Any]) -> None:
        """Every element is one of the set."""
        found = set(self.array(target).ravel().tolist())
        foreign = found - set(expected_set)
        self.assertFalse(foreign, f"{foreign!r} is not in {expected_set!r}")

    def assertAllInRangeInclusive(self, target: Any, lower: ArrayLike, upper: ArrayLike) -> None:
        """Every element lies between the bounds, which belong to the range."""
        self.assertAllInRange(target, lower, upper)

    def assertAllFinite(self, a: Any) -> None:
        """No element is infinite or NaN."""
        a = self.array(a)
        self._assert_where(np.isfinite(a), a, "finite")

    def assertAllNan(self, a: Any) -> None:
        """Every element is NaN."""
        a = self.array(a)
        self._assert_where(np.isnan(a), a, "NaN")

    def _assert_where(self, holds: Any, a: Array, condition: str) -> None:
        if not np.all(holds):
            where = np.argwhere(~np.asarray(holds))[:10].tolist()
            self.fail(f"Not every element is {condition}: at {where} of {_brief(a)}")

    # Shapes, lengths and text

    def assertShapeEqual(
        self, np_array: ArrayLike, tf_tensor: Tensor, msg: str | None = None
    ) -> None:
        """The static shape of a tensor is the shape of an array."""
        if not isinstance(np_array, np.ndarray | np.generic):
            raise TypeError("np_array must be a Numpy ndarray or Numpy scalar")
        if not isinstance(tf_tensor, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance] - user input
            raise TypeError("tf_tensor must be a Tensor")
        shape = list(cast("Array", np_array).shape)
        self.assertEqual(shape, tf_tensor.shape.as_list(), msg)

    def assertStartsWith(self, actual: str, expected_start: str, msg: str | None = None) -> None:
        """A string starts with another."""
        if not actual.startswith(expected_start):
            self.fail(f"{actual!r} does not start with {expected_start!r}{_note(msg)}")

    def assertEmpty(self, container: Sized, msg: str | None = None) -> None:
        """Nothing is inside."""
        self.assertEqual(len(container), 0, f"{container!r} has {len(container)} items{_note(msg)}")

    def assertNotEmpty(self, container: Sized, msg: str | None = None) -> None:
        """Something is inside."""
        self.assertTrue(len(container), f"{container!r} is empty{_note(msg)}")

    def assertLen(self, container: Sized, expected_len: int, msg: str | None = None) -> None:
        """The number of items."""
        self.assertEqual(
            len(container), expected_len, f"{container!r} has {len(container)} items{_note(msg)}"
        )

    def assertSameElements(
        self, expected_seq: Iterable[Any], actual_seq: Iterable[Any], msg: str | None = None
    ) -> None:
        """The same items, whatever their order and number."""
        expected, actual = set(expected_seq), set(actual_seq)
        missing, more = expected - actual, actual - expected
        if missing or more:
            self.fail(f"Expected, but missing: {missing}; unexpected: {more}{_note(msg)}")

    def assertContainsSubset(
        self, expected_subset: Iterable[Any], actual_set: Iterable[Any], msg: str | None = None
    ) -> None:
        """All of some items are among others."""
        if missing := set(expected_subset) - set(actual_set):
            self.fail(f"Missing elements: {missing}{_note(msg)}")

    def assertNoCommonElements(
        self, expected_seq: Iterable[Any], actual_seq: Iterable[Any], msg: str | None = None
    ) -> None:
        """None of some items is among others."""
        if common := set(expected_seq) & set(actual_seq):
            self.fail(f"Common elements: {common}{_note(msg)}")

    def assertBetween(self, value: Any, minv: Any, maxv: Any, msg: str | None = None) -> None:
        """A number is in an interval, its ends included."""
        if not minv <= value <= maxv:
            self.fail(f"{value!r} is not between {minv!r} and {maxv!r}{_note(msg)}")

    def assertSequenceAlmostEqual(
        self,
        expected_seq: Sequence[float],
        actual_seq: Sequence[float],
        places: int | None = None,
        msg: str | None = None,
        delta: float | None = None,
    ) -> None:
        """Numbers are almost those of another sequence."""
        self.assertEqual(len(expected_seq), len(actual_seq), msg)
        for expected, actual in zip(expected_seq, actual_seq, strict=True):
            options: dict[str, Any] = {"places": places, "delta": delta}
            self.assertAlmostEqual(expected, actual, msg=msg, **options)

    # Names that left unittest, or that TensorFlow's base class adds to it.
    assertRaisesRegexp = unittest.TestCase.assertRaisesRegex  # noqa: N815 - unittest's style
    assertItemsEqual = unittest.TestCase.assertCountEqual  # noqa: N815 - unittest's style


def _is_symbolic(value: Any) -> bool:
    """Tensors, variables and whatever else a session can fetch."""
    return hasattr(value, "graph") and hasattr(value, "eval")


def _is_ragged(value: Any) -> bool:
    """Whether a sequence must be compared item by item, since no one array holds it."""
    if not isinstance(value, list | tuple):
        return False
    items = cast("Sequence[Any]", value)
    if any(isinstance(item, Mapping) or _is_symbolic(item) or _is_ragged(item) for item in items):
        return True
    try:
        return len({np.shape(item) for item in items}) > 1
    except ValueError:
        return True


def _difference(title: str, a: Array, b: Array, where: Array, msg: str | None) -> str:
    lines = [f"{title}{_note(msg)}: {int(np.sum(where))} of {a.size} elements"]
    for index in [tuple(i) for i in np.argwhere(where)[:10]]:
        lines.append(f"  at {tuple(map(int, index))}: {a[index]!r} against {b[index]!r}")
    lines.append(f"left ({a.dtype}): {_brief(a)}\nright ({b.dtype}): {_brief(b)}")
    return "\n".join(lines)


def _brief(array: Array) -> str:
    return np.array2string(array, threshold=20)


def _note(msg: str | None) -> str:
    return "" if msg is None else f" ({msg})"
