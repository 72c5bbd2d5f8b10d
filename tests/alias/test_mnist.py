"""The readers of MNIST that tutorials import."""

import gzip
from pathlib import Path

import numpy as np
import pytest

import thalweg as tf
from thalweg.alias import mnist, mnist_model

COUNT = 30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The four files: images whose pixels are their number, and labels."""
    for name, count in (("train", COUNT), ("t10k", 4)):
        images = np.repeat(np.arange(count, dtype=np.uint8), 784).tobytes()
        header = np.array([2051, count, 28, 28], ">i4").tobytes()
        (tmp_path / f"{name}-images-idx3-ubyte").write_bytes(header + images)
        labels = (np.arange(count) % 10).astype(np.uint8).tobytes()
        header = np.array([2049, count], ">i4").tobytes()
        packed = gzip.compress(header + labels)
        (tmp_path / f"{name}-labels-idx1-ubyte.gz").write_bytes(packed)
    return tmp_path


def test_the_examples_are_cut_into_three_parts(folder: Path) -> None:
    data = mnist.read_data_sets(str(folder), one_hot=True, validation_size=10)
    sizes = [part.num_examples for part in (data.train, data.validation, data.test)]
    assert sizes == [20, 10, 4]
    assert data.train.images.shape == (20, 784)
    assert data.train.images.dtype == np.float32
    np.testing.assert_array_equal(data.test.labels.argmax(1), np.arange(4))
    np.testing.assert_allclose(data.validation.images[9, 0], 9 / 255)


def test_an_epoch_has_every_example_once_and_keeps_labels_with_images(folder: Path) -> None:
    train = mnist.read_data_sets(str(folder), validation_size=0, dtype=tf.uint8, seed=1).train
    batches = [train.next_batch(8) for _ in range(4)]
    images = np.concatenate([images for images, _ in batches])[:, 0]
    labels = np.concatenate([labels for _, labels in batches])
    assert sorted(images[:COUNT]) == [*range(COUNT)]
    np.testing.assert_array_equal(images % 10, labels)
    assert len(images) == 32
    assert train.epochs_completed == 1


def test_images_may_keep_their_shape(folder: Path) -> None:
    data = mnist.read_data_sets(str(folder), reshape=False, validation_size=0)
    assert data.test.images.shape == (4, 28, 28, 1)


def test_fake_data_needs_no_files(tmp_path: Path) -> None:
    images, labels = mnist.read_data_sets(str(tmp_path), fake_data=True).train.next_batch(3)
    assert np.shape(images) == (3, 784)
    assert labels == [0, 0, 0]


def test_missing_files_are_named_and_nothing_is_downloaded(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"train-images-idx3-ubyte\.gz.*not in the folder"):
        mnist.read_data_sets(str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"garbage and more", b"\x00\x00\x08\x03\x00\x00\x00\x09"])
def test_files_that_are_none_are_refused(folder: Path, content: bytes) -> None:
    (folder / "train-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(ValueError, match=r"train-images|should hold"):
        mnist.read_data_sets(str(folder))


def test_truncated_files_are_refused(folder: Path) -> None:
    path = folder / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="should hold"):
        mnist.read_data_sets(str(folder))


def test_the_tutorials_network_trains() -> None:
    rng = np.random.default_rng(0)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(0)
        images, labels = rng.random((20, 784), np.float32), np.arange(20) % 10
        logits = mnist_model.inference(tf.constant(images), 16, 8)
        loss = mnist_model.loss(logits, tf.constant(labels, tf.int32))
        train = mnist_model.training(loss, 0.01)
        right = mnist_model.evaluation(logits, tf.constant(labels, tf.int32))
        session.run(tf.global_variables_initializer())
        before = session.run(loss)
        for _ in range(30):
            session.run(train)
        assert session.run(loss) < before
        assert 0 <= session.run(right) <= 20
        assert "hidden1/weights:0" in [v.name for v in tf.global_variables()]
