"""The readers of MNIST that TensorFlow's tutorials import: `input_data.read_data_sets(folder)`.

The four files (`train-images-idx3-ubyte.gz` and so on, packed or not) are read from the folder that
the program names. Nothing is downloaded.
"""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from thalweg.graph.dtypes import as_dtype, float32

Array = np.ndarray[Any, Any]

TRAIN_IMAGES = "train-images-idx3-ubyte.gz"
TRAIN_LABELS = "train-labels-idx1-ubyte.gz"
TEST_IMAGES = "t10k-images-idx3-ubyte.gz"
TEST_LABELS = "t10k-labels-idx1-ubyte.gz"
DEFAULT_SOURCE_URL = "https://storage.googleapis.com/cvdf-datasets/mnist/"
_IMAGES, _LABELS = 2051, 2049  # what a file of each kind begins with
_FAKE_EXAMPLES = 10_000


class Datasets(NamedTuple):
    """The three parts that the examples are cut into."""

    train: Any
    validation: Any
    test: Any


class DataSet:
    """Images and labels, handed out in shuffled batches by `next_batch`."""

    def __init__(
        self,
        images: Any,
        labels: Any,
        fake_data: bool = False,
        one_hot: bool = False,
        dtype: Any = float32,
        reshape: bool = True,
        seed: int | None = None,
    ) -> None:
        self._random = np.random.default_rng(seed)
        self.fake_data, self.one_hot = fake_data, one_hot
        self._epochs_completed = self._index_in_epoch = 0
        if fake_data:
            self._num_examples = _FAKE_EXAMPLES
            return
        if len(images) != len(labels):
            raise ValueError(f"{len(images)} images and {len(labels)} labels do not match.")
        self._num_examples = len(images)
        self._images, self._labels = self._converted(images, as_dtype(dtype), reshape), labels

    def _converted(self, images: Array, dtype: Any, reshape: bool) -> Array:
        if dtype not in ("uint8", "float32"):
            raise TypeError(f"Invalid image dtype {dtype!r}, expected uint8 or float32")
        if reshape:
            images = images.reshape(len(images), math.prod(images.shape[1:]))
        return images.astype(np.float32) / np.float32(255) if dtype == "float32" else images

    @property
    def images(self) -> Array:
        """All images, in the present order."""
        return self._images

    @property
    def labels(self) -> Array:
        """All labels, in the present order."""
        return self._labels

    @property
    def num_examples(self) -> int:
        """How many examples there are."""
        return self._num_examples

    @property
    def epochs_completed(self) -> int:
        """How often all examples were handed out."""
        return self._epochs_completed

    def next_batch(
        self, batch_size: int, fake_data: bool = False, shuffle: bool = True
    ) -> tuple[Any, Any]:
        """The next `batch_size` images and labels; a batch may reach into the next epoch."""
        if fake_data or self.fake_data:
            label: Any = [1] + [0] * 9 if self.one_hot else 0
            return [[1] * 784 for _ in range(batch_size)], [label] * batch_size
        start = self._index_in_epoch
        if start == 0 and self._epochs_completed == 0 and shuffle:
            self._shuffle()
        rest = self._images[start:], self._labels[start:]
        self._index_in_epoch = start + batch_size
        if self._index_in_epoch <= self._num_examples:
            return rest[0][:batch_size], rest[1][:batch_size]
        self._epochs_completed += 1
        if shuffle:
            self._shuffle()
        self._index_in_epoch = batch_size - len(rest[0])
        first = self._images[: self._index_in_epoch], self._labels[: self._index_in_epoch]
        return np.concatenate([rest[0], first[0]]), np.concatenate([rest[1], first[1]])

    def _shuffle(self) -> None:
        order = self._random.permutation(self._num_examples)
        self._images, self._labels = self._images[order], self._labels[order]


def read_data_sets(
    train_dir: str,
    fake_data: bool = False,
    one_hot: bool = False,
    dtype: Any = float32,
    reshape: bool = True,
    validation_size: int = 5000,
    seed: int | None = None,
    source_url: str = DEFAULT_SOURCE_URL,
) -> Datasets:
    """Read the four files of MNIST from a folder; FileNotFoundError says which are missing."""
    options: dict[str, Any] = {"one_hot": one_hot, "dtype": dtype, "seed": seed}
    if fake_data:
        return Datasets(*(DataSet([], [], fake_data=True, **options) for _ in range(3)))
    images, labels = _read(train_dir, TRAIN_IMAGES, TRAIN_LABELS, one_hot, source_url)
    test = _read(train_dir, TEST_IMAGES, TEST_LABELS, one_hot, source_url)
    if not 0 <= validation_size <= len(images):
        raise ValueError(
            f"Validation size should be between 0 and {len(images)}. Received: {validation_size}."
        )
    options["reshape"] = reshape
    validation = images[:validation_size], labels[:validation_size]
    train = images[validation_size:], labels[validation_size:]
    return Datasets(*(DataSet(*part, **options) for part in (train, validation, test)))


def load_mnist(train_dir: str = "MNIST-data") -> Datasets:
    """`read_data_sets` of a folder."""
    return read_data_sets(train_dir)


def _read(folder: str, images: str, labels: str, one_hot: bool, url: str) -> tuple[Array, Array]:
    paths = [_path(folder, name) for name in (images, labels)]
    if None in paths:
        raise FileNotFoundError(
            f"The MNIST files {images} and {labels} are not in the folder {folder!r}, and nothing "
            f"is downloaded: get the four files from {url} and put them there."
        )
    with _opened(paths[0]) as file:
        pixels = extract_images(file)
    with _opened(paths[1]) as file:
        return pixels, extract_labels(file, one_hot=one_hot)


def _path(folder: str, name: str) -> Any:
    """A file of that name, packed or not."""
    candidates = (Path(folder, name), Path(folder, name.removesuffix(".gz")))
    return next((path for path in candidates if path.is_file()), None)


def _opened(path: Path) -> Any:
    return path.open("rb")


def extract_images(f: Any) -> Array:
    """The images of an idx file: [index, y, x, depth] of uint8."""
    return _idx(f, _IMAGES, 3)[..., np.newaxis]


def extract_labels(f: Any, one_hot: bool = False, num_classes: int = 10) -> Array:
    """The labels of an idx file: [index] of uint8, or one-hot rows."""
    labels = _idx(f, _LABELS, 1)
    return dense_to_one_hot(labels, num_classes) if one_hot else labels


def dense_to_one_hot(labels_dense: Array, num_classes: int) -> Array:
    """Class numbers as one-hot rows."""
    return np.eye(num_classes)[labels_dense]


def _idx(file: Any, magic: int, rank: int) -> Array:
    """The array in an idx file, whose header is the magic number and the sizes, big-endian."""
    content = file.read()
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    name = getattr(file, "name", "the file")
    header = np.frombuffer(content[: 4 * (rank + 1)], ">i4")
    if len(header) < rank + 1 or header[0] != magic:
        raise ValueError(f"{name} is no MNIST file: it does not begin with {magic}.")
    sizes = [int(size) for size in header[1:]]
    data = np.frombuffer(content, np.uint8, offset=4 * (rank + 1))
    if min(sizes) < 0 or data.size != np.prod(sizes, dtype=object):
        raise ValueError(f"{name} should hold {sizes} bytes and holds {data.size}.")
    return data.reshape(sizes)
