"""Streaming reads of tensors: delivery, verification and reuse of arrays."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from thalweg import errors
from thalweg.platform.files import checkpoint_files, streaming
from thalweg.platform.files.durable import BLOCK
from thalweg.platform.files.safetensors import Piece
from thalweg.platform.files.tensor_slices import parse_slice

SIZES = [0, 1, 3, 1000, BLOCK - 5, BLOCK // 4, 3 * BLOCK // 4 + 1, 2 * BLOCK, 7]


def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    made = {f"t{n}": rng.random(size, np.float32) for n, size in enumerate(SIZES)}
    names = np.array([b"a", b"", b"long" * 9], object)
    return {**made, "flag": np.array([True, False]), "scalar": np.float64(2.5), "names": names}


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("stream") / "model")
    checkpoint_files.save(path, [[Piece(n, np.asarray(a)) for n, a in arrays().items()]])
    return path


def received(prefix: str, wishes: list[Any]) -> list[Any]:
    """The arrays received for names or (name, slice) pairs."""
    result: list[Any] = [None] * len(wishes)

    def receiver(place: int) -> Any:
        def receive(array: Any) -> None:
            assert result[place] is None
            result[place] = array

        return receive

    named = [wish if isinstance(wish, tuple) else (wish, None) for wish in wishes]
    opened = checkpoint_files.open_files(prefix)
    opened.read_into([(name, box, receiver(n)) for n, (name, box) in enumerate(named)])
    return result


@pytest.mark.parametrize(
    "names", [list(arrays()), ["t1"], ["t0"], ["t4", "t2"], ["t7", "t1", "names"], ["t3", "t3"]]
)
def test_every_receiver_gets_its_array(prefix: str, names: list[str]) -> None:
    for name, array in zip(names, received(prefix, names), strict=True):
        expected = np.asarray(arrays()[name])
        assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(array, expected)
        assert array.flags.writeable and array.flags.owndata


def test_contiguous_and_strided_slices(tmp_path: Path) -> None:
    value = np.arange(20.0).reshape(4, 5)
    halves = [parse_slice("4 5 0,2:-"), parse_slice("4 5 2,2:-")]
    pieces = [Piece("x", value[:2], halves[0]), Piece("x", value[2:], halves[1])]
    checkpoint_files.save(str(tmp_path / "m"), [pieces])
    second, across, all_ = received(
        str(tmp_path / "m"), [("x", halves[1]), ("x", parse_slice("4 5 1,2:-")), ("x", None)]
    )
    np.testing.assert_array_equal(second, value[2:])
    np.testing.assert_array_equal(across, value[1:3])
    np.testing.assert_array_equal(all_, value)


def test_returned_arrays_are_filled_next(tmp_path: Path) -> None:
    value = np.arange(BLOCK // 4, dtype=np.float32)
    names = [f"x{n}" for n in range(9)]
    checkpoint_files.save(str(tmp_path / "m"), [[Piece(name, value) for name in names]])
    old = {name: np.zeros_like(value) for name in names}
    places = {array.ctypes.data for array in old.values()}
    new: dict[str, Any] = {}

    def receiver(name: str) -> Any:
        def receive(array: Any) -> Any:
            new[name] = array
            return old.pop(name)

        return receive

    opened = checkpoint_files.open_files(str(tmp_path / "m"))
    opened.read_into([(name, None, receiver(name)) for name in names])
    assert all(np.array_equal(array, value) for array in new.values())
    # Two threads fill at most four at once: two initially, and the next ones.
    assert sum(array.ctypes.data not in places for array in new.values()) <= 4


def test_arrays_that_are_not_needed_are_freed(tmp_path: Path) -> None:
    sizes = [BLOCK // 4 + n for n in range(9)]
    values = {f"x{n}": np.zeros(size, np.float32) for n, size in enumerate(sizes)}
    checkpoint_files.save(str(tmp_path / "m"), [[Piece(n, value) for n, value in values.items()]])
    former: list[Any] = []
    alive: list[int] = []

    def receiver(size: int) -> Any:
        def receive(array: Any) -> Any:
            alive.append(sum(each() is not None for each in former))
            old = np.zeros(size, np.float32)
            former.append(weakref.ref(old))
            return old

        return receive

    opened = checkpoint_files.open_files(str(tmp_path / "m"))
    opened.read_into([(n, None, receiver(value.size)) for n, value in values.items()])
    assert max(alive) <= 2  # one that each thread is about to free


def test_arrays_come_from_the_heap_of_the_calling_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = np.zeros(BLOCK // 2, np.float32)
    names = [f"x{n}" for n in range(9)]
    checkpoint_files.save(str(tmp_path / "m"), [[Piece(name, value) for name in names]])
    allocating: list[int] = []
    empty = np.empty

    def recorded(shape: Any, dtype: Any) -> Any:
        if shape == value.shape:
            allocating.append(threading.get_ident())
        return empty(shape, dtype)

    monkeypatch.setattr(np, "empty", recorded)
    opened = checkpoint_files.open_files(str(tmp_path / "m"))
    opened.read_into([(name, None, lambda array: array) for name in names])
    assert set(allocating) == {threading.get_ident()}


def damage(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def data_file(folder: Path) -> Path:
    (path,) = folder.glob("*.safetensors")
    return path


@pytest.mark.parametrize("count", [1, 6])
def test_a_damaged_block_raises_and_its_tensors_are_not_delivered(
    tmp_path: Path, count: int
) -> None:
    value = np.ones(BLOCK // 4, np.float32)
    pieces = [Piece(f"x{n}", value) for n in range(count)]
    checkpoint_files.save(str(tmp_path / "m"), [pieces])
    path = data_file(tmp_path)
    damage(path, path.stat().st_size - 3)
    handed: list[str] = []

    def receiver(name: str) -> Any:
        return lambda array: handed.append(name)

    opened = checkpoint_files.open_files(str(tmp_path / "m"))
    with pytest.raises(errors.DataLossError, match=str(path)):
        opened.read_into([(piece.name, None, receiver(piece.name)) for piece in pieces])
    assert f"x{count - 1}" not in handed


def test_a_file_that_cannot_be_read_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(errors.NotFoundError, match="none"):
        streaming.Mapped(str(tmp_path / "none"))
    with pytest.raises(errors.FailedPreconditionError):
        streaming.Mapped(str(tmp_path))


def test_an_empty_file_has_an_empty_mapping(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    mapped = streaming.Mapped(str(path))
    mapped.advise(streaming._DONT_NEED, 0, 100)
    assert mapped.array.size == 0
