"""Kernels by content: memory, disk, damage, death in the middle, eviction, and many at once."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.codegen.contraction.contractions import matmul
from thalweg.codegen import cache, progress
from thalweg.codegen.cache import Kernels, Loaded, as_request
from thalweg.codegen.emit import emit
from thalweg.codegen.kernels import request
from thalweg.codegen.llvm.compile import object_code
from thalweg.codegen.llvm.emitted import Emitted, Request
from thalweg.codegen.machine import named
from thalweg.ir.expr import Load, call
from thalweg.ir.fingerprint import with_dynamic
from thalweg.ir.functions.dtypes import Unsupported
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Argument, Loops, Store
from thalweg.ir.loop import Variable
from thalweg.platform.disk_cache import Disk, disk_of_environment

NATIVE = named("native")
ROOT = Path(__file__).resolve().parent.parent.parent


def module(number: int) -> Emitted:
    """A kernel that returns a number."""
    return Emitted(("kernel",), f"define i64 @kernel() {{\n  ret i64 {number}\n}}\n")


def answer(number: int) -> Request:
    return as_request(module(number))


BAD = as_request(Emitted(("kernel",), "define i64 @kernel( {"))


def answers_of(kernels: Sequence[Loaded]) -> list[int]:
    return [ctypes.CFUNCTYPE(ctypes.c_int64)(kernel.functions[0])() for kernel in kernels]


def scaled(dtype: type = np.float32, size: int = 40) -> Loops:
    """y[i] = 2 x[i + 3]."""
    i = Variable(size, "i")
    x, y = Argument(0, np.dtype(dtype), size + 3), Argument(1, np.dtype(dtype), size, True)
    value = call("mul", Load(x, Affine(3, {i: 1})), 2)
    return Loops((x, y), (i,), (Store(y, (i,), Affine(0, {i: 1}), value),))


def files(root: Path) -> list[Path]:
    """The entries of a cache, and unfinished ones."""
    return sorted(path for path in root.glob("??/*") if path.is_file())


def python(program: str, *arguments: object) -> subprocess.Popen[str]:
    """A process with the compiler alone: the rest of the package takes long to import."""
    boot = f"""
import sys, types
sys.path.insert(0, {str(ROOT)!r})
sys.modules["thalweg"] = package = types.ModuleType("thalweg")
package.__path__ = [{str(ROOT / "thalweg")!r}]
import ctypes, os, signal
from pathlib import Path
from thalweg.codegen import cache
from thalweg.codegen.cache import Kernels, as_request
from thalweg.platform.disk_cache import Disk
from thalweg.codegen.llvm.emitted import Emitted
from thalweg.codegen.machine import named
def answer(number):
    text = f"define i64 @kernel() {{{{\\n  ret i64 {{number}}\\n}}}}\\n"
    return as_request(Emitted(("kernel",), text))
def answers_of(kernels):
    return [ctypes.CFUNCTYPE(ctypes.c_int64)(kernel.functions[0])() for kernel in kernels]
root, target = Path(sys.argv[1]), named("native")
"""
    command = [sys.executable, "-c", boot + program, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out


def test_the_second_time_it_comes_from_memory():
    kernels = Kernels(None)
    first = kernels.load([answer(1), answer(2)], NATIVE)
    assert kernels.load([answer(2), answer(1)], NATIVE) == first[::-1]
    assert answers_of(first) == [1, 2]
    assert (kernels.statistics.misses, kernels.statistics.memory_hits) == (2, 2)
    assert kernels.statistics.code_bytes > 0


def test_one_kernel_twice_in_a_load_is_compiled_once():
    kernels = Kernels(None)
    first, second = kernels.load([answer(1), answer(1)], NATIVE)
    assert first == second
    assert kernels.statistics.misses == 1


def test_the_next_process_finds_it_on_disk(tmp_path: Path):
    Kernels(Disk(tmp_path)).load([answer(1)], NATIVE)
    kernels = Kernels(Disk(tmp_path))
    assert answers_of(kernels.load([answer(1)], NATIVE)) == [1]
    assert (kernels.statistics.disk_hits, kernels.statistics.misses) == (1, 0)
    assert kernels.statistics.memory_hits == 0


def never() -> Emitted:
    raise AssertionError("it is in the cache")


def test_what_is_in_the_cache_is_not_made_again(tmp_path: Path):
    kernels = Kernels(Disk(tmp_path))
    first = kernels.load([answer(1)], NATIVE)
    known = replace(answer(1), make=never)
    assert kernels.load([known], NATIVE) == first
    assert answers_of(Kernels(Disk(tmp_path)).load([known], NATIVE)) == [1]


def test_the_disk_keeps_functions_and_scratch(tmp_path: Path):
    text = "".join(f"define i64 @{name}() {{ ret i64 {n} }}\n" for n, name in enumerate("abc"))
    wanted = as_request(Emitted(("c", "a"), text, scratch=4096))
    Kernels(Disk(tmp_path)).load([wanted], NATIVE)
    (actual,) = Kernels(Disk(tmp_path)).load([replace(wanted, make=never)], NATIVE)
    call_of = ctypes.CFUNCTYPE(ctypes.c_int64)
    assert [call_of(address)() for address in actual.functions] == [2, 0]
    assert actual.scratch == 4096


def test_modules_are_loaded_by_their_text():
    first, second = (cache.load_all([as_request(module(5))], NATIVE) for _ in range(2))
    assert first == second


def test_other_targets_have_other_objects():
    assert cache.name_of(answer(1), NATIVE) != cache.name_of(answer(1), named("aarch64"))
    assert cache.name_of(answer(1), NATIVE) != cache.name_of(answer(2), NATIVE)


def test_a_key_tells_all_that_the_code_depends_on():
    keys = {
        as_request(replace(module(1), **change)).key
        for change in ({}, {"passes": "tiles"}, {"scratch": 64}, {"functions": ("other",)})
    }
    assert len(keys) == 4
    kernels = [scaled(), scaled(size=41), scaled(np.float64), with_dynamic(scaled(), {1}, 4)]
    kernels.append(with_dynamic(scaled(), {1}, 5))
    assert len({request(kernel, NATIVE).key for kernel in kernels}) == 5
    assert request(scaled(), NATIVE).key == request(scaled(), NATIVE).key


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: content[:20],
        lambda content: b"X" + content[1:],
        lambda content: content[:-5] + b"12345",
        lambda content: b"thalweg object 0" + content[16:],
    ],
)
def test_a_damaged_object_is_compiled_again(tmp_path: Path, damage):
    Kernels(Disk(tmp_path)).load([answer(1)], NATIVE)
    (path,) = files(tmp_path)
    content = path.read_bytes()
    path.write_bytes(damage(content))
    kernels = Kernels(Disk(tmp_path))
    assert answers_of(kernels.load([answer(1)], NATIVE)) == [1]
    assert kernels.statistics.misses == 1
    assert path.read_bytes() == content


@pytest.mark.parametrize("content", [b"not an object", b"0 kernel\nnot an object", b"\xff", b""])
def test_a_whole_file_that_is_no_object_is_compiled_again(tmp_path: Path, content: bytes):
    Disk(tmp_path).write(cache.name_of(answer(1), NATIVE), content)
    kernels = Kernels(Disk(tmp_path))
    assert answers_of(kernels.load([answer(1)], NATIVE)) == [1]
    assert kernels.statistics.misses == 1


def test_a_failed_compile_is_told_and_may_be_tried_again():
    kernels = Kernels(None)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="expected type"):
            kernels.load([BAD], NATIVE)
    assert answers_of(kernels.load([answer(1)], NATIVE)) == [1]


def test_what_cannot_be_made_is_explained():
    wanted = replace(request(scaled(np.complex64), NATIVE), explain=lambda e: KeyError(str(e)))
    with pytest.raises(KeyError) as told_so:
        Kernels(None).load([wanted], NATIVE)
    assert isinstance(told_so.value.__cause__, Unsupported)


def test_threads_compile_a_kernel_once():
    kernels = Kernels(None)
    together = threading.Barrier(4)

    def work(shift: int) -> list[int]:
        together.wait()
        expected = [(n + shift) % 12 for n in range(12)]
        assert answers_of(kernels.load([answer(n) for n in expected], NATIVE)) == expected
        return expected

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, (0, 3, 6, 9)))
    assert kernels.statistics.misses == 12


def test_processes_share_a_folder(tmp_path: Path):
    program = """
wanted = list(range(40))
for attempt in range(3):
    assert answers_of(Kernels(Disk(root)).load([answer(n) for n in wanted], target)) == wanted
    for path in list(root.glob("??/*.o"))[attempt::5]:
        path.unlink(missing_ok=True)
"""
    processes = [python(program, tmp_path) for _ in range(2)]
    for process in processes:
        finished(process)
    assert all(path.suffix == ".o" for path in files(tmp_path))


DIES_IN_A_WRITE = """
os.replace = lambda *names, **folders: os.kill(os.getpid(), signal.SIGKILL)
Kernels(Disk(root)).load([answer(1)], target)
"""


def test_death_in_the_middle_of_a_write_leaves_a_sound_cache(tmp_path: Path):
    process = python(DIES_IN_A_WRITE, tmp_path)
    process.communicate()
    assert process.returncode < 0
    (unfinished,) = files(tmp_path)
    assert unfinished.suffix == ".tmp"

    kernels = Kernels(Disk(tmp_path))
    assert answers_of(kernels.load([answer(1)], NATIVE)) == [1]
    assert kernels.statistics.misses == 1

    os.utime(unfinished, (0, 0))
    Disk(tmp_path).sweep()
    assert [path.suffix for path in files(tmp_path)] == [".o"]


def test_a_file_being_written_is_not_swept_away(tmp_path: Path):
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / "cd.tmp").write_bytes(b"half")
    Disk(tmp_path).sweep()
    assert len(files(tmp_path)) == 1


def aged(disk: Disk, number: int) -> str:
    """An object last used `100 - number` hours ago."""
    key = f"{number:02d}" * 32
    disk.write(key, b"x" * 1000)
    when = time.time() - 3600 * (100 - number)
    os.utime(disk._path(key), (when, when))
    return key


def test_the_longest_unused_go_first(tmp_path: Path):
    keys = [aged(Disk(tmp_path), number) for number in range(10)]
    disk = Disk(tmp_path, limit=5000)
    assert disk.read(keys[0])  # which makes it the latest
    disk.sweep()
    kept = [key for key in keys if disk._path(key).exists()]
    assert kept == [keys[0], *keys[-3:]]
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 5000


def test_writing_sweeps_now_and_then(tmp_path: Path):
    disk = Disk(tmp_path, limit=5000)
    for number in range(2 * Disk.SWEEP_EVERY):
        disk.write(f"{number:04d}" * 16, b"x" * 1000)
    assert len(files(tmp_path)) < Disk.SWEEP_EVERY + 5


def test_many_objects_are_looked_at_less_often(tmp_path, monkeypatch):
    disk, listings = Disk(tmp_path), []
    for number in range(1500):
        disk.write(f"{number:064x}"[::-1], b"x")
    counted = Disk._entries
    monkeypatch.setattr(Disk, "_entries", lambda self: listings.append(1) or counted(self))
    disk.sweep()
    for number in range(1500, 1800):
        disk.write(f"{number:064x}"[::-1], b"x")
    assert len(listings) == 1


def test_use_is_noted_at_most_once_an_hour(tmp_path: Path):
    disk = Disk(tmp_path)
    disk.write("ab" * 32, b"code")
    path = disk._path("ab" * 32)
    os.utime(path, (time.time() - 60, time.time() - 60))
    before = path.stat().st_mtime
    disk.read("ab" * 32)
    assert path.stat().st_mtime == before


def test_a_folder_that_cannot_be_written_leaves_memory(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    kernels = Kernels(Disk(tmp_path / "file" / "cache"))
    assert answers_of(kernels.load([answer(1), answer(2)], NATIVE)) == [1, 2]
    assert kernels.statistics.misses == 2


def test_the_environment_says_where_and_how_much(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("THALWEG_CACHE", "0")
    assert disk_of_environment() is None
    monkeypatch.setenv("THALWEG_CACHE", str(tmp_path / "here"))
    monkeypatch.setenv("THALWEG_CACHE_LIMIT", "123")
    disk = disk_of_environment()
    assert disk
    assert (disk._root, disk._limit) == (tmp_path / "here", 123)
    monkeypatch.delenv("THALWEG_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    disk = disk_of_environment()
    assert disk
    assert disk._root == tmp_path / "thalweg"
    monkeypatch.setenv("THALWEG_CACHE_LIMIT", "much")
    with pytest.raises(ValueError, match="'much'"):
        disk_of_environment()


# Many at once


@pytest.fixture
def helped(monkeypatch: pytest.MonkeyPatch):
    """Two helpers however few processors there are."""
    monkeypatch.setattr(cache, "_worker_limit", lambda requests: 2)


@pytest.mark.usefixtures("helped")
def test_threads_make_what_one_thread_makes():
    kernel = scaled()
    wanted = [
        kernel,
        with_dynamic(kernel, {2}, len(kernel.arguments) + 2),
        *(matmul(n, 48, 40) for n in (16, 33)),
    ] * 3
    actual = dict(cache.compile_all([request(one, NATIVE) for one in wanted], NATIVE))
    for number, one in enumerate(wanted):
        made = emit(one, NATIVE)
        code = object_code(made.text, NATIVE, made.passes)
        assert actual[number] == cache.Compiled(code, made.functions, made.scratch)


@pytest.mark.usefixtures("helped")
def test_helpers_share_the_work(monkeypatch: pytest.MonkeyPatch):
    asking, helped = threading.current_thread(), threading.Event()

    def watched(*args) -> bytes:
        if threading.current_thread() is asking:
            assert helped.wait(60)  # a helper comes before the one that asks
        else:
            helped.set()
        return object_code(*args)

    monkeypatch.setattr(cache, "object_code", watched)
    kernels = Kernels(None)
    assert answers_of(kernels.load([answer(n) for n in range(20)], NATIVE)) == list(range(20))


def test_the_switch_interval_is_short_only_while_kernels_are_made():
    before = sys.getswitchinterval()
    first, second = (cache.compile_all([answer(n) for n in range(3)], NATIVE) for _ in range(2))
    for kernels in (first, second, first, second):
        next(kernels)
        assert sys.getswitchinterval() == before  # whoever places a kernel meanwhile
    with cache._short_switch_interval():
        with cache._short_switch_interval():
            pass
        assert sys.getswitchinterval() == pytest.approx(cache._SWITCH_INTERVAL)
    assert sys.getswitchinterval() == before


@pytest.mark.usefixtures("helped")
def test_an_error_in_a_helper_is_told():
    with pytest.raises(RuntimeError, match="expected type"):
        Kernels(None).load([*(answer(n) for n in range(20)), BAD], NATIVE)


@pytest.mark.usefixtures("helped")
def test_what_is_given_up_is_not_made():
    made: list[int] = []

    def one(number: int) -> Emitted:
        made.append(number)
        return module(number)

    wanted = [Request(f"{n}", partial(one, n)) for n in range(50)]
    kernels = cache.compile_all(wanted, NATIVE)
    next(kernels)
    kernels.close()  # as where an interrupt comes
    for thread in threading.enumerate():
        if thread.name == "thalweg-compile":
            thread.join()
    assert len(made) < 50


def test_a_process_that_is_interrupted_while_threads_compile_ends_well(tmp_path: Path):
    program = """
cache._worker_limit = lambda requests: 2
kernels = cache.compile_all([answer(n) for n in range(2000)], target)
next(kernels)
os.kill(os.getpid(), signal.SIGINT)
list(kernels)
"""
    process = python(program, tmp_path)
    _, err = process.communicate()
    assert process.returncode in (1, -signal.SIGINT)
    assert "KeyboardInterrupt" in err


def test_one_kernel_needs_no_helper():
    assert cache._worker_limit([answer(1)]) == 0
    assert cache._worker_limit([]) == 0


def test_kernels_alike_come_together_the_costly_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cache, "_worker_limit", lambda requests: 0)
    costs = [("loops", 0.9), ("tiles", 0.1), ("tiles", 0.3), ("loops", 0.2)]
    wanted = [
        replace(answer(n), passes=passes, cost=cost) for n, (passes, cost) in enumerate(costs)
    ]
    assert [number for number, _ in cache.compile_all(wanted, NATIVE)] == [2, 1, 0, 3]


def test_a_fork_while_threads_compile_begins_anew(tmp_path: Path):
    program = """
cache._worker_limit = lambda requests: 2
wanted = list(range(200))
kernels = cache.compile_all([answer(n) for n in wanted], target)
next(kernels)
children = []
for _ in range(5):  # helpers are at work
    child = os.fork()
    if not child:
        assert answers_of(cache.load_all([answer(n) for n in range(20)], target)) == list(range(20))
        os._exit(7)
    children.append(child)
for child in children:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert len(list(kernels)) == len(wanted) - 1
"""
    finished(python(program, tmp_path))


# The progress of a long compile


@pytest.mark.parametrize("with_tqdm", [True, False])
def test_progress_is_shown_after_a_while(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], with_tqdm: bool
):
    monkeypatch.setenv("THALWEG_PROGRESS", "1")
    monkeypatch.setattr(progress, "_PATIENCE", -1.0)
    if with_tqdm:
        pytest.importorskip("tqdm")
    else:
        monkeypatch.setitem(sys.modules, "tqdm", None)
    assert list(progress.progress(range(12), 12)) == list(range(12))
    shown = capfd.readouterr().err
    assert "compiling" in shown
    assert "12 kernels" in shown


def test_no_progress_without_a_terminal(capfd: pytest.CaptureFixture[str]):
    assert list(progress.progress(range(3), 3)) == [0, 1, 2]
    assert capfd.readouterr().err == ""
