"""Passes of the lowering, as text: the nests that they remove and add."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import thalweg as tf
from tests.lower.passes.nest_text import changed_by
from tests.lower.programs import use_target

FUSED = """\
- contraction f32(out m0: f32[128], w: f32[512], x: f32[256]):
-   for rows i < 8, columns j < 16, reduced r < 32:
-     left = x[r + 32*i]
-     right = w[j + 16*r]
-     m0[j + 16*i] = acc
- loops(out out0: f32[128], bias: f32[16], m0: f32[128]):
-   for i < 8, j < 16:
-     out0[j + 16*i] = max(m0[j + 16*i] + bias[j], 0.0)
+ contraction f32(out out0: f32[128], w: f32[512], x: f32[256], bias: f32[16]):
+   for rows i < 8, columns j < 16, reduced r < 32:
+     left = x[r + 32*i]
+     right = w[j + 16*r]
+     out0[j + 16*i] = max(acc + bias[j], 0.0)
"""
REMATERIALIZED = """\
  loops(out m0: f32[256], x: f32[256]): …
  contraction f32(out m1: f32[256], w: f32[256], m0: f32[256]): …
  contraction f32(out m2: f32[256], w: f32[256], m1: f32[256]): …
  contraction f32(out m3: f32[256], w: f32[256], m2: f32[256]): …
- loops(out out0: f32[1], m0: f32[256], m3: f32[256]):
-   out0[0] = sum[r < 16, s < 16](tanh(m3[s + 16*r]) * m0[s + 16*r])
+ loops(out out0: f32[1], x: f32[256], m3: f32[256]):
+   out0[0] = sum[r < 16, s < 16](tanh(m3[s + 16*r]) * max(x[s + 16*r] * 2.0 + 1.0, 0.0))
"""
PRETRANSPOSED = """\
- contraction f32(out m0: f32[256], w: f32[256], x: f32[256]):
-   for rows i < 16, columns j < 16, reduced r < 16:
-     left = x[r + 16*i]
-     right = w[r + 16*j]
-     m0[j + 16*i] = acc
- contraction f32(out out0: f32[256], w: f32[256], m0: f32[256]):
-   for rows i < 16, columns j < 16, reduced r < 16:
-     left = m0[r + 16*i]
-     right = w[r + 16*j]
-     out0[j + 16*i] = acc
+ loops(out m1: f32[256], w: f32[256]):
+   for i < 16, j < 16:
+     m1[16*i + j] = w[16*j + i]
+ contraction f32(out m0: f32[256], m1: f32[256], x: f32[256]):
+   for rows i < 16, columns j < 16, reduced r < 16:
+     left = x[r + 16*i]
+     right = m1[16*r + j]
+     m0[j + 16*i] = acc
+ contraction f32(out out0: f32[256], m1: f32[256], m0: f32[256]):
+   for rows i < 16, columns j < 16, reduced r < 16:
+     left = m0[r + 16*i]
+     right = m1[16*r + j]
+     out0[j + 16*i] = acc
"""
CONCATENATED = """\
- contraction f32(out m0: f32[128], v: f32[256], x: f32[128]):
-   for rows i < 8, columns j < 16, reduced r < 16:
-     left = x[r + 16*i]
-     right = v[j + 16*r]
-     m0[j + 16*i] = acc
- contraction f32(out m1: f32[256], w: f32[512], x: f32[128]):
-   for rows i < 8, columns j < 32, reduced r < 16:
-     left = x[r + 16*i]
-     right = w[j + 32*r]
-     m1[j + 32*i] = acc
- loops(out m2: f32[384], m1: f32[256], m0: f32[128]):
-   for i < 8, j < 48:
-     m2[j + 48*i] = select(j < 16, m0[j + 16*i], m1[j + 32*i - 16])
+ contraction f32(out m2: f32[352], v: f32[256], x: f32[128]):
+   for rows i < 8, columns j < 16, reduced r < 16:
+     left = x[r + 16*i]
+     right = v[j + 16*r]
+     m2[j + 48*i] = acc
+ contraction f32(out m2_from_16: f32[368], w: f32[512], x: f32[128]):
+   for rows i < 8, columns j < 32, reduced r < 16:
+     left = x[r + 16*i]
+     right = w[j + 32*r]
+     m2_from_16[j + 48*i] = acc
  contraction f32(out out0: f32[128], last: f32[768], m2: f32[384]): …
"""
HOISTED = """\
  contraction f32(out m0: f32[1024], w: f32[256], x: f32[1024]): …
+ loops(out out1: f32[16], m0: f32[1024]):
+   for i < 16:
+     out1[i] = sum[r < 64](m0[i + 16*r])
  contraction f32(out m1: f32[1024], w: f32[256], m0: f32[1024]): …
  contraction f32(out out0: f32[1024], w: f32[256], m1: f32[1024]): …
- loops(out out1: f32[16], m0: f32[1024]):
-   for i < 16:
-     out1[i] = sum[r < 64](m0[i + 16*r])
"""
MERGED = """\
  contraction f32(out m0: f32[256], w: f32[256], x: f32[256]): …
  loops(out m1: f32[256], m0: f32[256]): …
  contraction f32(out m2: f32[256], w: f32[256], m1: f32[256]): …
  loops(out m3: f32[256], m2: f32[256]): …
  contraction f32(out m4: f32[256], w: f32[256], m3: f32[256]): …
  loops(out m5: f32[256], m4: f32[256], c0: f32[256]): …
  contraction f32(out m6: f32[256], w: f32[256], m5: f32[256]): …
- contraction f32(out m7: f32[256], m5: f32[256], m3: f32[256]):
-   for rows i < 16, columns j < 16, reduced r < 16:
-     left = m3[i + 16*r]
-     right = m5[j + 16*r]
-     m7[j + 16*i] = acc
  loops(out m8: f32[256], m3: f32[256], m6: f32[256]): …
  contraction f32(out m9: f32[256], w: f32[256], m8: f32[256]): …
- contraction f32(out m10: f32[256], m8: f32[256], m1: f32[256]):
-   for rows i < 16, columns j < 16, reduced r < 16:
-     left = m1[i + 16*r]
-     right = m8[j + 16*r]
-     m10[j + 16*i] = acc
  loops(out m11: f32[256], m1: f32[256], m9: f32[256]): …
  contraction f32(out m12: f32[256], m11: f32[256], x: f32[256]): …
- loops(out out0: f32[256], m12: f32[256], m10: f32[256], m7: f32[256]):
-   for i < 16, j < 16:
-     out0[j + 16*i] = m7[j + 16*i] + m10[j + 16*i] + m12[j + 16*i]
+ contraction f32(out out0: f32[256], m13: f32[512], m14: f32[512], m12: f32[256]):
+   for rows i < 16, columns j < 16, reduced r < 2, reduced s < 16:
+     left = m14[i + 16*s + 256*r]
+     right = m13[j + 16*s + 256*r]
+     out0[j + 16*i] = acc + m12[j + 16*i]
"""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lower the thresholds of passes, so that small steps show them."""
    use_target(
        monkeypatch,
        far_bytes=1 << 10,
        min_rematerialized_bytes=1 << 8,
        min_hoisted_bytes=1 << 10,
        min_pretransposed_uses=2,
        min_merged_contractions=2,
    )
    with tf.Graph().as_default():
        yield


def given(name: str, *shape: int) -> Any:
    return tf.placeholder(tf.float32, shape, name)


def dense() -> list[Any]:
    """An activation of a product."""
    return [tf.nn.relu(tf.matmul(given("x", 8, 32), given("w", 32, 16)) + given("bias", 16))]


def an_early_value_read_late() -> list[Any]:
    x, w = given("x", 16, 16), given("w", 16, 16)
    early = tf.nn.relu(x * 2.0 + 1.0)
    late = tf.matmul(early, w)
    for _ in range(2):
        late = tf.tanh(tf.matmul(late, w))
    return [tf.reduce_sum(late * early)]


def products_by_rows_of_one_matrix() -> list[Any]:
    x, w = given("x", 16, 16), given("w", 16, 16)
    return [tf.matmul(tf.matmul(x, w, transpose_b=True), w, transpose_b=True)]


def products_side_by_side() -> list[Any]:
    x, v, w = given("x", 8, 16), given("v", 16, 16), given("w", 16, 32)
    return [tf.matmul(tf.concat([tf.matmul(x, v), tf.matmul(x, w)], 1), given("last", 48, 16))]


def a_sum_of_an_early_value() -> list[Any]:
    x, w = given("x", 64, 16), given("w", 16, 16)
    early = tf.matmul(x, w)
    return [tf.matmul(tf.matmul(early, w), w), tf.reduce_sum(early, 0)]


def a_weight_used_at_every_step() -> list[Any]:
    state, w = given("x", 16, 16), given("w", 16, 16)
    for _ in range(3):
        state = tf.tanh(tf.matmul(state, w))
    return tf.gradients(tf.reduce_sum(state), [w])


@pytest.mark.parametrize(
    ("name", "make", "expected"),
    [
        ("fuse", dense, FUSED),
        ("rematerialize", an_early_value_read_late, REMATERIALIZED),
        ("pretranspose", products_by_rows_of_one_matrix, PRETRANSPOSED),
        ("concat_in_place", products_side_by_side, CONCATENATED),
        ("hoist_consumers", a_sum_of_an_early_value, HOISTED),
        ("merge_reductions", a_weight_used_at_every_step, MERGED),
    ],
)
def test_what_a_pass_changes(name: str, make: Callable[[], list[Any]], expected: str) -> None:
    assert changed_by(name, *make()) == expected
