"""Programs that an earlier process made: found, not found after any change, damaged, shared."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.lower.programs import regions_of
from tests.runtime.processes import Processes, with_layout
from thalweg.codegen import cache, sources
from thalweg.codegen.contraction import tune as tuned
from thalweg.codegen.machine import named
from thalweg.codegen.sources import code_digest
from thalweg.device.cpu.device import CpuDevice
from thalweg.device.cpu.pool import Pool
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape
from thalweg.lower import lowering
from thalweg.lower.fingerprint import fingerprint
from thalweg.lower.lowering import lower
from thalweg.lower.specialise import NotCompiled
from thalweg.runtime import compiled, engine, program_cache

pytestmark = pytest.mark.skipif(not engine.COMPILES, reason="nothing is compiled")

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Processes:
    return Processes(tmp_path, monkeypatch, compiled)


def batch(size: int) -> Any:
    return np.random.default_rng(size).normal(size=(size, 20)).astype(np.float32)


def layer(x: Any, scale: float = 0.5, axis: int = 1) -> Any:
    w = tf.constant(np.linspace(-1, 1, 600, dtype=np.float32).reshape(20, 30))
    return tf.reduce_sum(tf.nn.relu(tf.matmul(x, w) * scale), axis)


def test_a_second_process_lowers_nothing(processes: Processes) -> None:
    first = processes.run(layer, batch(7))
    assert processes.lowered == 1
    second = processes.run(layer, batch(7))
    assert processes.lowered == 0
    np.testing.assert_array_equal(first, second)


def train(session: Any, steps: int = 3, optimizer: Any = None) -> list[Any]:
    x = tf.placeholder(tf.float32, [None, 20])
    w = tf.Variable(np.linspace(-1, 1, 60, dtype=np.float32).reshape(20, 3))
    noise = tf.random_normal([3], seed=5)
    loss = tf.reduce_mean(tf.square(tf.tanh(tf.matmul(x, w)) - noise))
    update = (optimizer or tf.train.AdamOptimizer(0.1)).minimize(loss)
    session.run(tf.global_variables_initializer())
    losses = [session.run([loss, update], {x: batch(4)})[0] for _ in range(steps)]
    return [*losses, session.run(w)]


def test_training_is_the_same_to_the_bit(processes: Processes) -> None:
    with processes.next() as session:
        first = train(session)
    with processes.next() as session:
        second = train(session)
    assert processes.lowered == 0
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


def outputs_of_many_kinds(x: Any) -> Any:
    total = tf.reduce_sum(x)
    known = tf.range(4) * 3
    best = tf.argmax(x, 1)
    half = tf.cast(x, tf.bfloat16)
    return [total, known, best, tf.cast(half, tf.float32), x > 0, tf.gather(known, best % 4)]


def test_results_of_every_kind_come_back(processes: Processes) -> None:
    (first,) = processes.run(outputs_of_many_kinds, batch(5))
    (second,) = processes.run(outputs_of_many_kinds, batch(5))
    assert processes.lowered == 0
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
        assert np.asarray(one).dtype == np.asarray(other).dtype


CHANGES: dict[str, Callable[[Any], Any]] = {
    "attribute": lambda x: layer(tf.matmul(x, x, transpose_a=True)),
    "constant": lambda x: layer(x, scale=0.25),
    "axis": lambda x: layer(x, axis=0),
    "op": lambda x: tf.negative(layer(x)),
    "wiring": lambda x: layer(x) - layer(x + 1),
    "dtype": lambda x: tf.cast(layer(x), tf.float64),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_another_region_is_lowered(processes: Processes, change: Callable[[Any], Any]) -> None:
    processes.run(layer, batch(7))
    processes.run(change, batch(7))
    assert processes.lowered == 1


def test_another_shape_is_lowered(processes: Processes) -> None:
    processes.run(layer, batch(7))
    processes.run(layer, batch(8))
    assert processes.lowered == 1


def test_attributes_constants_and_wiring_make_an_identity() -> None:
    def of(build: Callable[[Any, Any], Any]) -> bytes | None:
        with tf.Graph().as_default():
            x, y = (tf.placeholder(tf.float32, [4, 4]) for _ in range(2))
            (region,) = regions_of(build(x, y))
            return fingerprint(region)

    with_bytes = np.arange(100, dtype=np.float32)
    other_bytes = np.where(with_bytes == 57, 58, with_bytes).astype(np.float32)
    programs: list[Callable[[Any, Any], Any]] = [
        lambda x, y: tf.matmul(x, y) + x,
        lambda x, y: tf.matmul(x, y) + y,
        lambda x, y: tf.matmul(x, y, transpose_b=True),
        lambda x, y: tf.matmul(x, y) + 1.0,
        lambda x, y: tf.matmul(x, y) + 1.5,
        lambda x, y: tf.reduce_sum(x - y) + tf.constant(with_bytes),
        lambda x, y: tf.reduce_sum(x - y) + tf.constant(other_bytes),
        lambda x, y: tf.reduce_sum(x - y) + tf.constant(with_bytes.reshape(10, 10)),
        lambda x, y: tf.concat([x, y], 0),
        lambda x, y: tf.concat([x, y], 1),
        lambda x, y: tf.random_normal([3], seed=1) + tf.reduce_sum(x - y),
        lambda x, y: tf.random_normal([3], seed=2) + tf.reduce_sum(x - y),
    ]
    actual = [of(program) for program in programs]
    assert None not in actual
    assert len(set(actual)) == len(actual)
    assert [of(program) for program in programs] == actual


def test_what_only_this_process_knows_has_no_identity() -> None:
    class Odd(Op, name="OddOfATest"):
        signature = "x: float32 -> y: float32"
        elementwise = True

        def shape(self, x: Any) -> TensorShape:
            return x.shape

        def numpy(self, x: Any) -> Any:
            return x

        def element(self, x: Any) -> Any:
            return x

    with tf.Graph().as_default():
        (region,) = regions_of(Odd()(tf.placeholder(tf.float32, [3])))
        assert fingerprint(region) is None


@pytest.mark.parametrize("what", ["threads", "target", "schedules", "code"])
def test_another_environment_is_lowered_for(
    processes: Processes, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    processes.run(layer, batch(7))
    with processes.next() as session:
        if what == "threads":
            session = tf.Session(config=tf.ConfigProto(intra_op_parallelism_threads=1))
        elif what == "target":
            session._engine.devices = [CpuDevice(pool=Pool(target=named("x86-64")))]
        elif what == "schedules":
            tuned.winners()._state = "others"
        else:
            monkeypatch.setattr(program_cache, "environment_key", lambda: "other code")
        x = tf.placeholder(tf.float32, [None, 20])
        session.run(layer(x), {x: batch(7)})
    assert processes.lowered == 1


COMMENTED = """# A comment.
def f(x):
    \'\'\'Words: "a" # b.
    \'\'\'

    return x + 1  # more


class A:
    \'\'\'Words.\'\'\'

    y = "# no comment"
    z = g(
        \'\'\'no
 docstring\'\'\'
    )
""".replace("'''", '"' * 3)


def test_comments_and_docstrings_do_not_count(tmp_path: Path) -> None:
    def digest(source: str) -> str:
        (tmp_path / "code").mkdir(exist_ok=True)
        (tmp_path / "code" / "a.py").write_text(source)
        return code_digest(tmp_path, ["code"])

    first = digest(COMMENTED)
    assert digest(COMMENTED.replace("Words", "Other words")) == first
    assert digest(COMMENTED.replace("  # more", "")) == first
    assert digest("\n" + COMMENTED.replace("A comment", "Another")) == first
    for old, new in (("x + 1", "x + 2"), ("# no", "# yes"), ("no\n", "no\n\n")):
        assert digest(COMMENTED.replace(old, new)) != first


def test_a_file_that_did_not_change_is_not_read_again(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def digest() -> str:
        sources.own_digest.cache_clear()
        sources._folder_digest.cache_clear()
        with processes.next():
            return sources.own_digest(("lower",))

    first = digest()
    monkeypatch.setattr(sources, "_file_digest", lambda path: pytest.fail(f"{path} is read"))
    assert digest() == first


def test_every_line_of_code_counts(tmp_path: Path) -> None:
    for folder in program_cache.FOLDERS:
        assert (ROOT / "thalweg" / folder).is_dir()
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text("x = 1\n")
    actual = {code_digest(tmp_path, program_cache.FOLDERS)}
    for folder in program_cache.FOLDERS:
        (tmp_path / folder / "a.py").write_text("x = 2\n")
        actual.add(code_digest(tmp_path, program_cache.FOLDERS))
    assert len(actual) == len(program_cache.FOLDERS) + 1


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "foreign"])
def test_a_damaged_entry_is_made_again(processes: Processes, damage: str) -> None:
    (first,) = processes.run(layer, batch(7))
    for path in processes.files():
        if damage == "foreign":
            processes.forge(path, b"\x10\0\0\0\0\0\0\0[1, 2, 3, 4, 56]and more")
            continue
        content = path.read_bytes()
        middle = len(content) // 2
        path.write_bytes(
            {
                "cut": content[:middle],
                "flipped": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
                "empty": b"",
            }[damage]
        )
    (second,) = processes.run(layer, batch(7))
    assert processes.lowered == 1
    np.testing.assert_array_equal(first, second)
    processes.run(layer, batch(7))
    assert processes.lowered == 0


def test_an_entry_under_another_name_is_not_believed(processes: Processes) -> None:
    processes.run(layer, batch(7))
    mine = set(processes.files()) - processes.kernels()
    processes.run(lambda x: layer(x, 0.25), batch(7))
    (other,) = set(processes.files()) - processes.kernels() - mine
    for path in mine:
        path.write_bytes(other.read_bytes())
    (actual,) = processes.run(layer, batch(7))
    assert processes.lowered == 1
    w = np.linspace(-1, 1, 600, dtype=np.float32).reshape(20, 30)
    np.testing.assert_allclose(actual, np.maximum(batch(7) @ w * 0.5, 0).sum(1), rtol=1e-5)


def test_a_missing_kernel_is_made_again(processes: Processes) -> None:
    processes.run(layer, batch(7))
    for path in processes.kernels():
        path.unlink()
    processes.run(layer, batch(7))
    assert processes.lowered == 1


@pytest.mark.parametrize("change", ["scratch", "phases"])
def test_kernels_of_another_layout_do_not_serve(
    processes: Processes, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """The arena and the table of a program are laid out for the kernels that it was stored with."""
    first = processes.run(layer, batch(7))
    with monkeypatch.context() as patch:
        patch.setattr(CpuDevice, "_find_named", with_layout(change))
        np.testing.assert_array_equal(processes.run(layer, batch(7)), first)
        assert processes.lowered == 1
    processes.run(layer, batch(7))
    assert processes.lowered == 0


def test_a_folder_that_cannot_be_written_to_does_not_matter(processes: Processes) -> None:
    processes.folder = processes.folder / "file"
    processes.folder.write_text("not a folder")
    for _ in range(2):
        processes.run(layer, batch(7))
        assert processes.lowered == 1


def test_sizes_that_vary(processes: Processes) -> None:
    """Programs of shapes that came before are found; others go on from what was found."""
    first = processes.run(layer, batch(7), batch(9), batch(11))
    assert processes.lowered == 3
    second = processes.run(layer, batch(7), batch(9), batch(11))
    assert processes.lowered == 0
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
    (_, _, third) = processes.run(layer, batch(7), batch(9), batch(13))
    assert processes.lowered == 1
    assert cache.statistics().misses == 0  # the kernels that were found take any size
    (alone,) = processes.run(layer, batch(13))
    np.testing.assert_allclose(third, alone, rtol=1e-5)


def test_the_order_in_which_sizes_came_does_not_matter(processes: Processes) -> None:
    processes.run(layer, batch(7), batch(9), batch(11), batch(13), batch(15), batch(17))
    processes.run(layer, batch(7), batch(17), batch(9), batch(13))
    assert processes.lowered == 0
    processes.run(layer, batch(9), batch(11))
    assert processes.lowered == 1  # the first one alone: with all sizes in its code


def test_a_node_that_cannot_be_compiled_is_remembered(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(region: Any, shapes: Any, target: Any) -> Any:
        node = next((n for n in region.nodes if n.type == "Relu"), None)
        if node is not None:
            processes.lowered += 1
            raise NotCompiled(node, "of the test")
        return lower(region, shapes, target)

    monkeypatch.setattr(compiled, "lower", refused)
    first = processes.run(layer, batch(7))
    assert processes.lowered
    second = processes.run(layer, batch(7))
    assert not processes.lowered
    np.testing.assert_array_equal(first, second)
    with processes.next() as session:
        x = tf.placeholder(tf.float32, [None, 20])
        assert "of the test" in str(session.plan(layer(x), {x: batch(7)}))


def picked(x: Any, index: int) -> Any:
    return tf.gather(x, tf.cast(x[0, :1], tf.int32) + index, name="picking")


def test_errors_name_the_op_and_the_line(processes: Processes) -> None:
    def failure() -> str:
        with processes.next() as session:
            x = tf.placeholder(tf.float32, [None, 20])
            y = picked(x, 0)
            session.run(y, {x: np.zeros((7, 20), np.float32)})
            with pytest.raises(tf.errors.InvalidArgumentError) as caught:
                session.run(y, {x: np.full((7, 20), 7, np.float32)})
            return str(caught.value)

    first = failure()
    assert processes.lowered == 1
    assert failure() == first
    assert processes.lowered == 0
    line = picked.__code__.co_firstlineno + 1
    assert "picking" in first and f"{Path(__file__).name}:{line}" in first


def descriptions(session: Any, x: Any, y: Any) -> str:
    plan = session.plan(y, {x: batch(7)})
    code = "\n".join(kernel.llvm + kernel.asm for kernel in plan.kernels)
    lines = [f"{row.ops} {row.lines}" for row in plan.profile(2).rows]
    return re.sub(r"compiled in .*", "", f"{plan}\n{code}\n{sorted(lines)}")


def test_plans_kernels_and_profiles_are_described_as_before(processes: Processes) -> None:
    def describe() -> str:
        with processes.next() as session:
            x = tf.placeholder(tf.float32, [None, 20])
            y = layer(x)
            session.run(y, {x: batch(7)})
            assert processes.lowered == lowered
            return descriptions(session, x, y)

    lowered = 1
    first = describe()
    lowered = 0
    assert describe() == first


# Parts of native loops


def run_loop(processes: Processes, factor: float = 2.0, kind: Any = tf.bfloat16) -> Any:
    """A loop over narrow floats and integers in a new process."""
    with processes.next() as session:
        x = tf.placeholder(tf.float32, [5])
        _, y = tf.while_loop(
            lambda i, y: i < 3,
            lambda i, y: (i + 1, tf.cast(tf.cast(y, kind), tf.float32) * factor + 1),
            [0, x],
        )
        slope = tf.gradients(y, x)[0]
        return session.run([y, slope], {x: np.linspace(0, 1, 5)})


@pytest.fixture
def loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Processes:
    return Processes(tmp_path, monkeypatch, lowering)


def test_a_second_process_lowers_no_part_of_a_loop(loops: Processes) -> None:
    first = run_loop(loops)
    assert loops.lowered
    second = run_loop(loops)
    assert not loops.lowered
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("change", [{"factor": 3.0}, {"kind": tf.float16}])
def test_another_loop_is_lowered(loops: Processes, change: dict[str, Any]) -> None:
    run_loop(loops)
    run_loop(loops, **change)
    assert loops.lowered


@pytest.mark.parametrize("damage", [b"", b"no entry of ours", None])
def test_a_damaged_part_is_made_again(loops: Processes, damage: bytes | None) -> None:
    first = run_loop(loops)
    entries = {path: path.read_bytes() for path in loops.folder.rglob("*.o")}
    for path, content in entries.items():
        if damage is None:
            path.write_bytes(content[:-1])
        else:
            loops.forge(path, damage)
    second = run_loop(loops)
    assert loops.lowered
    np.testing.assert_array_equal(first, second)


_PROGRAM = """
import numpy as np, thalweg as tf
from thalweg.runtime import compiled
from tests.runtime.test_program_cache import train
count, lower = [0], compiled.lower
def noted(*arguments):
    count[0] += 1
    return lower(*arguments)
compiled.lower = noted
with tf.Session() as session:
    found = train(session)
print(count[0], np.concatenate([np.ravel(x) for x in found]).tobytes().hex())
"""


_STEP = """
import sys
import thalweg as tf
x = tf.placeholder(tf.float32, [2, 2])
with tf.Session() as session:
    print(session.run(tf.nn.relu(tf.matmul(x, x) + 1), {x: [[1, 2], [3, -4]]}).tolist())
print([name in sys.modules for name in ("thalweg.lower.lowering", "thalweg.codegen.kernels")])
"""


_LOOP = """
import sys
import thalweg as tf
x = tf.placeholder(tf.float32, [])
with tf.Session() as session:
    print(session.run(tf.while_loop(lambda y: y < 100, lambda y: y * x, [x]), {x: 3}))
print([name in sys.modules for name in ("thalweg.codegen.emit", "thalweg.lower.control.builder")])
"""


@pytest.mark.parametrize("program", [_STEP, _LOOP])
def test_a_process_that_finds_its_programs_imports_no_compiler(
    program: str, tmp_path: Path
) -> None:
    environment = {**os.environ, "THALWEG_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)}

    def printed() -> list[str]:
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    (first, compiles), (later, finds) = printed(), printed()
    assert first == later
    assert (compiles, finds) == ("[True, True]", "[False, False]")


def test_processes_at_the_same_time(tmp_path: Path) -> None:
    environment = {**os.environ, "THALWEG_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)}

    def started() -> Any:
        command = [sys.executable, "-c", _PROGRAM]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    together = [process.communicate()[0].split() for process in [started() for _ in range(2)]]
    later = started().communicate()[0].split()
    assert later[0] == "0"
    assert {result for _, result in together} == {later[1]}
    assert not list(tmp_path.rglob("*.tmp"))
