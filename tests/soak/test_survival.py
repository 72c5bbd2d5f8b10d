"""A training job is killed again and again, and ends with the weights of one that never was.

Twice always, fifty times with THALWEG_SOAK=1.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.soak import rounds, survivor

pytestmark = pytest.mark.timeout(3600)

KILLS = rounds(2, 50)
EVERY = 3  # steps between checkpoints
# A run is killed at any moment in the soak. The few kills of the short form come when at least one
# checkpoint of the run is certain to be there, so that the next run has something to go on from.
MIN_LINES = rounds(2 * EVERY + 3, 0)  # lines that a run prints at least
MAX_LINES = 18
STEPS = KILLS * 30 + 10  # more than the killed runs can make


def started(folder: Path, output: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    command = [sys.executable, survivor.__file__, str(folder), str(STEPS), str(EVERY)]
    return subprocess.Popen(command, stdout=output, text=True)


def killed(folder: Path, rng: random.Random) -> list[tuple[str, int]]:
    """Run the job until some step, and a moment longer; what it said before it was killed."""
    with started(folder, subprocess.PIPE) as child:
        lines = [child.stdout.readline() for _ in range(rng.randrange(MIN_LINES, MAX_LINES))]
        try:
            child.wait(rng.uniform(0, 0.02) if lines else rng.uniform(0, 2))
        except subprocess.TimeoutExpired:
            child.kill()
        lines += child.stdout
    assert child.returncode == -signal.SIGKILL, "it ended before it could be killed"
    whole = [line.split() for line in lines if line.endswith("\n")]  # a kill may tear the last
    return [(word, int(step)) for word, step in whole]


def checkpoints(folder: Path) -> dict[int, dict[str, Any]]:
    """All variables of all checkpoints of a folder, by step."""
    result: dict[int, dict[str, Any]] = {}
    for index in folder.glob("*.index"):
        reader = tf.train.load_checkpoint(str(index.with_suffix("")))
        names = reader.get_variable_to_shape_map()
        values = {name: np.asarray(reader.get_tensor(name)) for name in names}
        result[int(values["global_step"])] = values
    return result


def weights(folder: Path) -> dict[str, Any]:
    """The numbers of the last checkpoint. What an iterator has read ahead is no matter of steps."""
    last = checkpoints(folder)[STEPS]
    return {name: value for name, value in last.items() if value.dtype.kind in "fi"}


def test_a_job_survives_kills(tmp_path: Path) -> None:
    rng = random.Random(1)
    calm, hunted = tmp_path / "calm", tmp_path / "hunted"
    undisturbed = started(calm)
    reached, resumed = 0, 0
    for _ in range(KILLS):
        said = killed(hunted, rng)
        starts = [step for word, step in said if word == "restored"]
        # A checkpoint waits for the one before: two periods are the most that a kill can cost.
        assert all(reached - 2 * EVERY < start for start in starts)
        reached = max([step for _, step in said], default=reached)
        resumed += any(start > 0 for start in starts)
        for values in checkpoints(hunted).values():
            assert np.isfinite(values["hidden/kernel"]).all()
    assert resumed >= KILLS // 2 and max(checkpoints(hunted)) < STEPS
    assert started(hunted).wait() == 0
    assert undisturbed.wait() == 0
    expected, actual = weights(calm), weights(hunted)
    assert expected.keys() == actual.keys() and len(actual) > 10
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, err_msg=name, strict=True)
    assert not list(hunted.glob("*.partial-*"))
