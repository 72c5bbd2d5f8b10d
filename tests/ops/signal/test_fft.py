"""Rows of the op table: Fourier transforms."""

import numpy as np
import pytest
import scipy.fft as oracle

import thalweg as tf
from tests.ops.harness import check

R = np.random.default_rng(4)
SMALL = R.normal(size=(2, 3, 2))
C = SMALL + 1j * R.normal(size=(2, 3, 2))

COMPLEX = {
    "fft": lambda x: np.fft.fft(x),
    "ifft": lambda x: np.fft.ifft(x),
    "fft2d": lambda x: np.fft.fft2(x),
    "ifft2d": lambda x: np.fft.ifft2(x),
    "fft3d": lambda x: np.fft.fftn(x),
    "ifft3d": lambda x: np.fft.ifftn(x),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex(name):
    check(getattr(tf, name), C, expect=COMPLEX[name])
    check(getattr(tf.spectral, name), C.astype(np.complex64), expect=COMPLEX[name], gradient=False)


AXES = {"rfft": (-1,), "rfft2d": (-2, -1), "rfft3d": (-3, -2, -1)}
LENGTHS = {"rfft": [[5], [4], [2]], "rfft2d": [[3, 5], [2, 4]], "rfft3d": [[2, 3, 4], [3, 2, 3]]}


@pytest.mark.parametrize("name", AXES)
def test_real(name):
    axes, forward, back = AXES[name], getattr(tf.spectral, name), getattr(tf.spectral, f"i{name}")
    signal = R.normal(size=(2, 3, 4))[..., :3]
    check(forward, signal, expect=lambda x: np.fft.rfftn(x, axes=axes))
    check(back, C, expect=lambda x: np.fft.irfftn(x, axes=axes))
    check(lambda x: tf.gradients(back(x), x)[0], C, gradient=False)
    check(forward, signal.astype(np.float32), gradient=False)


@pytest.mark.parametrize(("name", "length"), [(n, s) for n in LENGTHS for s in LENGTHS[n]])
def test_real_of_given_length(name, length):
    axes, forward, back = AXES[name], getattr(tf.spectral, name), getattr(tf.spectral, f"i{name}")
    check(lambda x: forward(x, length), SMALL, expect=lambda x: np.fft.rfftn(x, length, axes))
    check(lambda x: back(x, length), C, expect=lambda x: np.fft.irfftn(x, length, axes))


def test_empty_signals():
    check(tf.fft, np.zeros((0, 3), complex), expect=lambda x: x, gradient=False)
    check(tf.spectral.rfft, np.zeros((2, 0)), expect=np.zeros((2, 0), complex), gradient=False)


def test_too_few_axes():
    with pytest.raises(ValueError):
        tf.fft2d(np.zeros(3, complex))
    fed = tf.placeholder(tf.complex64)
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match="rank"):
        session.run(tf.fft3d(fed), {fed: np.zeros((2, 2), np.complex64)})
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match="fft_length"):
        session.run(tf.spectral.rfft(np.zeros(4), tf.placeholder_with_default([3, 3], None)))


@pytest.mark.parametrize("kind", [1, 2, 3])
@pytest.mark.parametrize("norm", [None, "ortho"])
def test_cosine(kind, norm):
    if kind == 1 and norm:
        with pytest.raises(ValueError, match="type 1"):
            tf.spectral.dct(SMALL, kind, norm=norm)
        return
    signal = R.normal(size=(2, 5))
    check(
        lambda x: tf.spectral.dct(x, kind, norm=norm),
        signal,
        expect=lambda x: oracle.dct(x, kind, norm=norm),
    )
    check(
        lambda x: tf.spectral.idct(x, kind, n=4, norm=norm),
        signal,
        expect=lambda x: oracle.dct(x[:, :4], {1: 1, 2: 3, 3: 2}[kind], norm=norm),
        gradient=False,
    )


def test_cosine_arguments():
    for wrong in ({"type": 4}, {"axis": 0}, {"norm": "l2"}, {"n": 0}):
        with pytest.raises(ValueError):
            tf.spectral.dct(SMALL, **wrong)
