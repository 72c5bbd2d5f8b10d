"""Parts of native loops that an earlier process lowered: found, damaged, and what is not read."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.lower.programs import regions_of, shape
from tests.runtime.processes import Processes
from thalweg.codegen.machine import host
from thalweg.lower import lowering
from thalweg.lower.lowering import lower
from thalweg.runtime import lowering_cache
from thalweg.runtime import session as sessions

pytestmark = pytest.mark.skipif(not sessions.COMPILES, reason="nothing is compiled")


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Processes:
    return Processes(tmp_path, monkeypatch, lowering)


def run_loop(processes: Processes, factor: float = 2.0, kind: Any = tf.bfloat16) -> Any:
    """A loop over halves and whole numbers in a new process."""
    with processes.next() as session:
        x = tf.placeholder(tf.float32, [5])
        _, y = tf.while_loop(
            lambda i, y: i < 3,
            lambda i, y: (i + 1, tf.cast(tf.cast(y, kind), tf.float32) * factor + 1),
            [0, x],
        )
        slope = tf.gradients(y, x)[0]
        return session.run([y, slope], {x: np.linspace(0, 1, 5)})


def test_a_second_process_lowers_no_part_of_a_loop(processes: Processes) -> None:
    first = run_loop(processes)
    assert processes.lowered
    second = run_loop(processes)
    assert not processes.lowered
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("change", [{"factor": 3.0}, {"kind": tf.float16}])
def test_another_loop_is_lowered(processes: Processes, change: dict[str, Any]) -> None:
    run_loop(processes)
    run_loop(processes, **change)
    assert processes.lowered


@pytest.mark.parametrize("damage", [b"", b"no pickle", None])
def test_a_damaged_entry_is_made_again(processes: Processes, damage: bytes | None) -> None:
    first = run_loop(processes)
    entries = {path: path.read_bytes() for path in processes.folder.rglob("*.o")}
    for path, content in entries.items():
        if damage is None:
            path.write_bytes(content[:-1])
        else:
            processes.forge(path, damage)
    second = run_loop(processes)
    assert processes.lowered
    np.testing.assert_array_equal(first, second)


def parts() -> tuple[Any, Any, lowering_cache._Parts]:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [3, 4])
        (region,) = regions_of(tf.matmul(x, tf.ones([4, 2])) + 1)
        shapes = {tensor: shape(tensor) for tensor in region.inputs}
        return region, shapes, lowering_cache._Parts(region)


def test_a_lowering_comes_back_as_it_was() -> None:
    region, shapes, numbered = parts()
    made = lower(region, shapes, host())
    content = lowering_cache._written(made, numbered, "name")
    assert content is not None
    found = lowering_cache._read(content, numbered, "name")
    assert found is not None and found.spec.region is region
    assert [launch.nodes for launch in found.launches] == [launch.nodes for launch in made.launches]
    assert list(found.buffers) == list(made.buffers)
    assert lowering_cache._read(content, numbered, "another") is None


class Harm:
    def __reduce__(self) -> Any:
        return print, ("harm",)


@pytest.mark.parametrize(
    "thing",
    [Harm(), print, lower, io.BytesIO, Path, eval],
    ids=["call", "print", "function", "class", "path", "eval"],
)
def test_only_parts_of_lowerings_are_read(thing: Any, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, numbered = parts()
    content = pickle.dumps(("name", thing))
    assert lowering_cache._read(content, numbered, "name") is None
    with pytest.raises(pickle.UnpicklingError, match="A lowering has no"):
        lowering_cache._Reader(io.BytesIO(content), numbered).load()
    assert not capsys.readouterr().out
