"""Kernels on memory at all kinds of addresses, with pages around it that must not be touched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.codegen.steps import STEPS

ROOT = Path(__file__).resolve().parent.parent.parent

PROGRAM = """
import sys
import numpy as np
import thalweg as tf
from tests.codegen.guarded import Guarded, Numpy
from tests.codegen.steps import STEPS
from thalweg.device.cpu import control_program, invocation, program
from thalweg.ops.core import buffer

def run(name, memory):
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        fetches, feeds = STEPS[name]()
        for module in (program, invocation, control_program, buffer):
            module.np = np if memory is None else Numpy(memory)
        session.run(tf.global_variables_initializer())
        if memory is not None:
            feeds = {x: memory.copy(value) for x, value in feeds.items()}
            memory.made = 0
        return tf.contrib.framework.nest.flatten(session.run(fetches, feeds))

def differ(one, other):
    return not np.array_equal(np.asarray(one), np.asarray(other), equal_nan=True)

for name in sys.argv[2:]:
    expected = run(name, None)
    shifts = range(64) if sys.argv[1] == "all" else (1, 13)
    memories = [Guarded(at_end=True), Guarded(at_end=False), *map(Guarded, shifts)]
    for memory in memories:
        print(name, memory.__dict__, flush=True)
        found = run(name, memory)
        results = sum(np.ndim(array) > 0 for array in found)
        assert memory.made >= results, "results are not guarded"
        for one, other in zip(expected, found, strict=True):
            if one is not None and differ(one, other):
                sys.exit(f"{name}: {memory.__dict__} gives something else")
"""


def check(program: str, *arguments: str) -> None:
    """In a process of its own: a kernel that reaches over an edge ends it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "THALWEG_THREADS": "1"}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    last = done.stdout.strip().rpartition("\n")[2]
    assert done.returncode == 0, f"{done.returncode} at {last}: {done.stderr[-2000:]}"


RANDOM = """
import sys
from tests.codegen.guarded import Guarded
from tests.codegen.loops.test_random_loops import Maker
from tests.codegen.oracle import TARGETS, native

for seed in range(*map(int, sys.argv[1:])):
    maker = Maker(seed)
    kernel = maker.kernel()
    for target in TARGETS:
        for at_end in (True, False):
            print(seed, target, at_end, flush=True)
            memory = Guarded(at_end=at_end)
            native(kernel, [memory.copy(array) for array in maker.arrays], target)
"""
NAMES = list(STEPS)


@pytest.mark.parametrize("part", range(2))
def test_kernels_stay_inside_their_buffers_wherever_those_lie(part: int) -> None:
    check(PROGRAM, "some", *NAMES[part::2])


def test_random_kernels_stay_inside_their_buffers() -> None:
    check(RANDOM, "0", "60")


@pytest.mark.skipif(not os.environ.get("THALWEG_SOAK"), reason="takes minutes: THALWEG_SOAK=1")
@pytest.mark.parametrize("part", range(16))
def test_kernels_give_the_same_at_every_element_of_a_line(part: int) -> None:
    check(PROGRAM, "all", *NAMES[part::16])


EDGES = """
from tests.codegen.guarded import Guarded
import ctypes, sys
array = Guarded(at_end=sys.argv[1] == "after").empty(10, "float32")
array[...] = 1
place = array.ctypes.data + (array.nbytes if sys.argv[1] == "after" else -1)
ctypes.c_char.from_address(place).value
"""


@pytest.mark.parametrize("edge", ["before", "after"])
def test_a_byte_outside_of_a_guarded_array_ends_the_process(edge: str) -> None:
    command = [sys.executable, "-c", EDGES, edge]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert done.returncode < 0
