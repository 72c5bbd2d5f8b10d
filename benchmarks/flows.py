"""What goes through queues and pipelines, into files and back.

`folder` is where a worker's files lie; it is removed when the work is done.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

MEGABYTE = 1 << 20
ITEMS = 8  # tensors of a megabyte that go through a queue in one step
RECORDS, WIDTH, BATCH, AHEAD, WORKERS = 100_000, 8, 128, 2, 2
TENSORS, EACH = 64, 4 << 20  # 64 of 16 MiB: a checkpoint of 1 GiB
EXAMPLES, EXAMPLE_BYTES = 100_000, 200


def folder() -> Path:
    """Where the files of this process go."""
    return Path(os.environ["BENCH_FOLDER"])


def item() -> np.ndarray:
    """A tensor of a megabyte."""
    return np.random.default_rng(1).random(MEGABYTE // 4, np.float32)


def records() -> tuple[np.ndarray, np.ndarray]:
    """Small records: a few features and a label."""
    rng = np.random.default_rng(2)
    return rng.random((RECORDS, WIDTH), np.float32), rng.integers(0, 10, RECORDS, np.int32)


def digest(batches: Iterable[tuple[Any, Any]]) -> np.ndarray:
    """What a pass over a pipeline is known by, looking at every batch."""
    count = labels = 0
    corner = 0.0
    for features, label in batches:
        count += len(label)
        labels += int(label[-1])
        corner += float(features[0, 0])
    return np.array([count, labels, corner])


def tensors() -> dict[str, np.ndarray]:
    """What a checkpoint holds."""
    rng = np.random.default_rng(3)
    return {f"weights{number}": rng.random(EACH, np.float32) for number in range(TENSORS)}


def sampled(values: Iterable[np.ndarray]) -> np.ndarray:
    """A few numbers of each tensor."""
    return np.array([value[place] for value in values for place in (0, EACH // 2, EACH - 1)])


def sync(paths: Iterable[Path]) -> None:
    """Have the disk keep files, as those of Thalweg already are."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def write_records(writer: Any) -> None:
    """Records of random bytes, by a system's own writer."""
    rng = np.random.default_rng(4)
    for _ in range(EXAMPLES):
        writer.write(rng.bytes(EXAMPLE_BYTES))


def digest_records(records: Iterable[bytes]) -> np.ndarray:
    """What a pass over records is known by."""
    count = size = 0
    last = b""
    for record in records:
        count += 1
        size += len(record)
        last = record
    return np.array([count, size, zlib.crc32(last), *struct.unpack("<8B", last[:8])])
