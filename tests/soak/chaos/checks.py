"""What a job has left behind: its checkpoints, and the loss of its model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import thalweg as tf
from tests.soak.chaos import trainee


def check_checkpoints(folder: Path) -> dict[str, Any]:
    """Every checkpoint can be read, and counts every update once; the values of the last."""
    found: dict[int, dict[str, Any]] = {}
    for index in (folder / "checkpoints").glob("*.index"):
        reader = tf.train.load_checkpoint(str(index.with_suffix("")))
        values = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
        step = int(values["global_step"])
        counted = {name: float(values[name]) for name in values if name.startswith("updates_")}
        assert counted and set(counted.values()) == {float(step)}, f"{index.stem}: {counted}"
        assert int(index.stem.rpartition("-")[2]) == step
        found[step] = values
    last = found[max(found)]
    return last | {"checkpoints": len(found)}


def loss_of(values: dict[str, Any]) -> float:
    """The loss of a model on examples that it has not seen."""
    x, y = trainee.data(seed=1, rows=5000)
    hidden = np.tanh(x @ values["hidden/kernel"] + values["hidden/bias"])
    return float(np.mean((hidden @ values["out/kernel"] + values["out/bias"] - y) ** 2))
