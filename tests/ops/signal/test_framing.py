"""Frames, windows and spectra over time, against SciPy and NumPy."""

from typing import Any

import numpy as np
import pytest
from scipy import signal

import thalweg as tf

R = np.random.default_rng(5)


def run(values: Any, feed: Any = None) -> Any:
    with tf.Session() as session:
        return session.run(values, feed)


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.mark.parametrize("name", ["hann", "hamming"])
@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("length", [1, 2, 8, 16])
def test_windows(name: str, periodic: bool, length: int) -> None:
    made = getattr(tf.signal, f"{name}_window")(length, periodic=periodic)
    size = tf.placeholder(tf.int32, [])
    dynamic = getattr(tf.signal, f"{name}_window")(size, periodic=periodic)
    expected = signal.get_window(name, length, fftbins=periodic)
    actual, later = run([made, dynamic], {size: length})
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    if length > 1:
        np.testing.assert_allclose(later, expected, atol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("pad_end", [False, True])
@pytest.mark.parametrize(("length", "step"), [(3, 2), (4, 4), (2, 5), (9, 2)])
def test_frames(axis: int, pad_end: bool, length: int, step: int) -> None:
    x = R.normal(size=(8, 7, 6))
    actual = run(tf.signal.frame(x, length, step, pad_end, pad_value=9, axis=axis))
    lines = np.moveaxis(x, axis, -1)
    count = lines.shape[-1]
    starts = range(0, count if pad_end else max(count - length + 1, 0), step)
    padded = np.pad(lines, [(0, 0), (0, 0), (0, length)], constant_values=9)
    cut = [padded[..., s : s + length] for s in starts]
    frames = np.stack(cut, -2) if cut else np.zeros((*lines.shape[:-1], 0, length))
    expected = np.moveaxis(frames, (-2, -1), (axis % 3, axis % 3 + 1))
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("step", [1, 2, 4, 5])
def test_overlapping_frames_are_added(step: int) -> None:
    frames = R.normal(size=(2, 3, 4)).astype(np.float32)
    actual = run(tf.signal.overlap_and_add(frames, step))
    expected = np.zeros((2, 4 + step * 2), np.float32)
    for i in range(3):
        expected[:, i * step : i * step + 4] += frames[:, i]
    np.testing.assert_allclose(actual, expected, 1e-6)


@pytest.mark.parametrize("fft_length", [None, 16, 24])
def test_spectra_over_time(fft_length: int | None) -> None:
    x = R.normal(size=(2, 60)).astype(np.float32)
    actual = run(tf.signal.stft(x, 16, 6, fft_length))
    window = signal.get_window("hann", 16)
    frames = np.stack([x[:, s : s + 16] * window for s in range(0, 45, 6)], 1)
    np.testing.assert_allclose(actual, np.fft.rfft(frames, fft_length or 16), atol=1e-4)


@pytest.mark.parametrize(("length", "step"), [(16, 4), (12, 6), (9, 3)])
def test_inverse_stft_reconstructs_signals(length: int, step: int) -> None:
    x = R.normal(size=(3, length + 10 * step)).astype(np.float32)
    spectra = tf.signal.stft(x, length, step)
    window = tf.signal.inverse_stft_window_fn(step)
    back = run(tf.signal.inverse_stft(spectra, length, step, window_fn=window))
    inner = slice(length, -length)  # at the ends, windows do not overlap
    np.testing.assert_allclose(back[:, inner], x[:, inner], atol=1e-4)


def test_gradients() -> None:
    x = tf.constant(R.normal(size=(30,)).astype(np.float32))
    energy = tf.reduce_sum(tf.abs(tf.signal.stft(x, 8, 4)) ** 2)
    gradient = run(tf.convert_to_tensor(tf.gradients(energy, x)[0]))
    assert gradient.shape == (30,)
    assert np.abs(gradient[4:26]).min() > 0


def test_a_step_is_an_integer() -> None:
    with pytest.raises(ValueError, match="frame_step must be an integer"):
        tf.signal.overlap_and_add(tf.ones([2, 3]), 1.0)
