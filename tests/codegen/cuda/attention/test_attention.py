"""Attention kernels on an emulated GPU: as NumPy has it, inside their buffers, and assembled."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import thalweg as tf
from tests.codegen.cuda.emulated import assemble, at_16_bytes
from tests.codegen.cuda.emulated import run as launch
from tests.codegen.cuda.sessions import emulated_kernels, run
from tests.codegen.oracle import Oracle, guarded
from thalweg.codegen.cuda.attention.form import NotAttention, form_of
from thalweg.codegen.cuda.attention.kernel import attention_shapes
from thalweg.codegen.cuda.target import CudaTarget
from thalweg.ir.kernel import Kernel, Loops
from thalweg.ops.nn.attention import FusedAttention, FusedAttentionGrad

R = np.random.default_rng(3)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

#: batch, queries, keys, elements of a head, causal, the mask's shape, dtype
CASES: dict[str, tuple[tuple[int, ...], int, int, int, bool, tuple[int, ...] | None, Any]] = {
    "causal": ((2,), 70, 70, 16, True, None, BFLOAT16),
    "two panels of a head, more queries than keys": ((), 70, 33, 128, False, None, np.float16),
    "causal, more keys than queries": ((1,), 20, 90, 64, True, None, BFLOAT16),
    "a mask of keys": ((2, 2), 17, 40, 16, False, (2, 1, 1, 40), np.float16),
    "a mask of pairs": ((2,), 33, 66, 48, False, (33, 66), BFLOAT16),
}


def normal(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return R.normal(size=shape).astype(dtype)


def inputs_of(name: str) -> tuple[list[np.ndarray], dict[str, Any]]:
    """q, k, v and the mask of a case, and the op's attributes."""
    batch, queries, keys, size, causal, mask, dtype = CASES[name]
    given = [normal((*batch, length, size), dtype) for length in (queries, keys, keys)]
    given.append(np.zeros((), dtype) if mask is None else normal(mask, dtype) * dtype_of(2, dtype))
    return given, {"scale": size**-0.5, "causal": causal}


def dtype_of(number: float, dtype: Any) -> Any:
    return np.dtype(dtype).type(number)


def computed(name: str) -> tuple[list[np.ndarray], list[np.ndarray], list[Kernel]]:
    """Outputs and gradients by kernels for a GPU and by NumPy, and the kernels."""
    given, attributes = inputs_of(name)
    forward, backward = FusedAttention(**attributes), FusedAttentionGrad(**attributes)
    wide = [each.astype(np.float32) for each in given]
    output, lse = forward.numpy(*wide)
    dy = normal(output.shape, given[0].dtype)
    delta = (output * dy.astype(np.float32)).sum(-1)
    wanted = [output, lse, *backward.numpy(*wide, dy.astype(np.float32), lse, delta)]
    with tf.Graph().as_default(), emulated_kernels() as machine:
        fed = [tf.placeholder(tf.as_dtype(x.dtype), x.shape) for x in (*given, dy, lse, delta)]
        fetches = [*forward(*fed[:4]), *backward(*fed)]
        found = run(fetches, dict(zip(fed, (*given, dy, lse, delta), strict=True)))
    return [np.asarray(x, np.float32) for x in found], wanted, machine.ran


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients(name: str) -> None:
    actual, expected, kernels = computed(name)
    for one, other in zip(actual, expected, strict=True):
        error = np.abs(one - other).max()
        assert error <= 0.012 * np.abs(other).max() + 1e-6
    np.testing.assert_allclose(actual[1], expected[1], rtol=1e-5, atol=1e-5)  # never rounded
    assert len(kernels) == 3  # the output; dq; dk and dv
    for kernel in kernels:
        assert isinstance(kernel, Loops)
        assert form_of(kernel)
        assemble(kernel)


@pytest.mark.parametrize("name", ["causal", "a mask of keys"])
def test_kernels_mean_what_their_loops_do(name: str) -> None:
    """The loops themselves are the meaning; buffers are aligned or not, with guards around."""
    for kernel in computed(name)[2]:
        arrays = [normal((int(a.size),), a.dtype) for a in kernel.arguments]
        expected = [array.copy() for array in arrays]
        Oracle(kernel, expected).run()
        for aligned in (True, False):
            found, guards = (at_16_bytes if aligned else guarded)(arrays)
            launch(kernel, found, aligned=aligned)
            assert all((guard == 0xA5).all() for guard in guards)
            for one, other in zip(found, expected, strict=True):
                error = np.abs(one.astype(np.float32) - other.astype(np.float32)).max()
                assert error <= 0.012 * np.abs(other.astype(np.float32)).max()


def test_strided_heads_are_read_in_place() -> None:
    """Heads of one product are read where they lie: no copy of them is made."""
    x = normal((2, 40, 3, 2, 16), BFLOAT16)
    with tf.Graph().as_default(), emulated_kernels() as machine:
        fed = tf.placeholder(tf.bfloat16, x.shape)
        q, k, v = tf.unstack(tf.transpose(fed, [2, 0, 3, 1, 4]))
        actual = run(FusedAttention(causal=True)(q, k, v, tf.constant(0.0)), {fed: x})
    wide = x.astype(np.float32).transpose(2, 0, 3, 1, 4)
    output, _ = FusedAttention(causal=True).numpy(*wide, np.float32(0))
    np.testing.assert_allclose(actual[0].astype(np.float32), output, rtol=2e-2, atol=2e-2)
    assert len(machine.ran) == 1


def test_an_operand_that_is_computed_is_stored_first() -> None:
    x = normal((2, 20, 16), BFLOAT16)
    with tf.Graph().as_default(), emulated_kernels() as machine:
        fed = tf.placeholder(tf.bfloat16, x.shape)
        q = tf.transpose(tf.transpose(fed, [0, 2, 1]) * 2, [0, 2, 1])
        k = tf.reverse(fed, [2])
        actual = run(FusedAttention()(q, k, fed, tf.constant(0.0)), {fed: x})
    wide = x.astype(np.float32)
    output, _ = FusedAttention().numpy(wide * 2, wide[..., ::-1], wide, np.float32(0))
    np.testing.assert_allclose(actual[0].astype(np.float32), output, rtol=2e-2, atol=2e-2)
    assert sum(_is_attention(kernel) for kernel in machine.ran) == 1


def test_what_no_kernel_takes_goes_over_stored_scores() -> None:
    """Few queries, float32, heads of 24, batches that broadcast."""
    shapes = (
        [(2, 3, 16), (2, 20, 16), (2, 20, 16)],
        [(2, 20, 24)] * 3,
        [(1, 20, 16), *[(2, 20, 16)] * 2],
    )
    for forms, dtype in zip(shapes, (BFLOAT16, BFLOAT16, np.float32), strict=True):
        given = [normal(shape, dtype) for shape in forms]
        with tf.Graph().as_default(), emulated_kernels() as machine:
            fed = [tf.placeholder(tf.as_dtype(dtype), x.shape) for x in given]
            found = run(
                FusedAttention()(*fed, tf.constant(0.0)), dict(zip(fed, given, strict=True))
            )
        wide = [x.astype(np.float32) for x in given]
        for one, other in zip(found, FusedAttention().numpy(*wide, np.float32(0)), strict=True):
            np.testing.assert_allclose(np.asarray(one, np.float32), other, rtol=3e-2, atol=3e-2)
        assert not any(_is_attention(kernel) for kernel in machine.ran)


def _is_attention(kernel: Kernel) -> bool:
    try:
        return bool(attention_shapes(kernel, CudaTarget())) if isinstance(kernel, Loops) else False
    except NotAttention:
        return False


def test_older_gpus_have_no_such_instructions() -> None:
    _, _, kernels = computed("causal")
    with pytest.raises(NotAttention):
        attention_shapes(kernels[0], CudaTarget(capability=75))
    for kernel in kernels:
        assemble(kernel, capability=80)


def test_lengths_known_at_run_time() -> None:
    with tf.Graph().as_default(), emulated_kernels() as machine:
        fed = tf.placeholder(tf.bfloat16, [None, None, 32])
        y = FusedAttention(causal=True)(fed, fed, fed, tf.constant(0.0))
        with tf.Session() as session:
            for size in (33, 64, 16, 70):
                x = normal((2, size, 32), BFLOAT16)
                found = session.run(y, {fed: x})
                wide = x.astype(np.float32)
                wanted = FusedAttention(causal=True).numpy(wide, wide, wide, np.float32(0))
                for one, other in zip(found, wanted, strict=True):
                    np.testing.assert_allclose(
                        np.asarray(one, np.float32), other, rtol=2e-2, atol=2e-2
                    )
    assert machine.ran


def test_gradients_of_lengths_known_at_run_time() -> None:
    """The grid follows the lengths of each call."""
    op = FusedAttentionGrad(causal=True)
    with tf.Graph().as_default(), emulated_kernels() as machine:
        fed = [tf.placeholder(tf.bfloat16, [None, None, 32]) for _ in range(4)]
        fed += [tf.placeholder(tf.float32, [None, None]) for _ in range(2)]
        q, k, v, *others = fed
        slopes = op(q, k, v, tf.constant(0.0), *others)
        with tf.Session() as session:
            for batch, size in ((2, 33), (2, 64), (2, 300), (3, 16)):
                *given, dy = [normal((batch, size, 32), BFLOAT16) for _ in range(4)]
                wide = [x.astype(np.float32) for x in (*given, dy)]
                output, lse = FusedAttention(causal=True).numpy(*wide[:3], np.float32(0))
                delta = (output * wide[3]).sum(-1)
                found = session.run(slopes, dict(zip(fed, (*given, dy, lse, delta), strict=True)))
                wanted = op.numpy(*wide[:3], np.float32(0), wide[3], lse, delta)
                for one, other in zip(found, wanted, strict=True):
                    error = np.abs(np.asarray(one, np.float32) - other).max()
                    assert error <= 0.012 * np.abs(other).max()
    assert all(map(_is_attention, machine.ran))
