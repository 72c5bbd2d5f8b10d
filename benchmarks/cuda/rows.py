"""The rows of the table of training steps on a GPU: network, precision, optimizer, and the bar."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any, Literal

import models
import numpy as np

Precision = Literal["bfloat16", "mixed", "tf32", "float32"]


@dataclass(frozen=True)
class Row:
    """A network in training.

    Its precision: weights and activations in bfloat16; float32 weights and products of bfloat16
    numbers ("mixed"); float32 by tensor cores that see 10 bits ("tf32"); or float32.
    """

    name: str
    model: Callable[[Any, Any], Any]
    shape: tuple[int, ...]
    tiny: tuple[int, ...]  # a shape for which an emulated GPU takes seconds
    bar: float
    precision: Precision = "bfloat16"
    optimizer: Literal["sgd", "adam"] = "sgd"
    rate: float = 0.001
    reads_tokens: bool = False
    tiny_model: Callable[[Any, Any], Any] | None = None

    @property
    def weight_dtype(self) -> str:
        """The dtype that weights are kept in."""
        return "bfloat16" if self.precision == "bfloat16" else "float32"

    def dtype_of(self, name: str) -> str:
        """The dtype of a weight; batch norms, their statistics and weights, are float32."""
        layer = name.rpartition("/")[0]
        is_norm = f"{layer}/moving_mean" in self._declared
        return "float32" if is_norm else self.weight_dtype

    @cached_property
    def _declared(self) -> dict[str, tuple[models.Shape, float | None]]:
        return models.declarations(self.model, self.shape)

    @cached_property
    def weights(self) -> dict[str, np.ndarray]:
        """The first values of all weights."""
        return {name: models.initial(name, *form) for name, form in self._declared.items()}

    @cached_property
    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """A batch: images, vectors or tokens, and labels."""
        rng = np.random.default_rng(1)
        logits = self.model(models.Shapes(), models.Extent(self.shape))
        if self.reads_tokens:
            x = rng.integers(0, logits[-1], self.shape, np.int32)
        else:
            x = rng.standard_normal(self.shape, np.float32)
        return x, rng.integers(0, logits[-1], logits[:-1], np.int32)


_FOUR = (
    Row("alexnet", models.alexnet, (128, 224, 224, 3), (2, 63, 63, 3), 2.0),
    Row("overfeat", models.overfeat, (128, 231, 231, 3), (1, 71, 71, 3), 1.4),
    Row("oxfordnet", models.oxfordnet, (64, 224, 224, 3), (1, 32, 32, 3), 1.3),
    Row("googlenet", models.googlenet, (128, 224, 224, 3), (1, 32, 32, 3), 1.8),
)
_MIXED_BARS = {"googlenet": 1.5}
_GPT2 = Row(
    "gpt2",
    models.gpt2,
    (8, 1024),
    (2, 80),
    1.1,
    optimizer="adam",
    rate=1e-4,
    reads_tokens=True,
    tiny_model=partial(models.decoder, layers=2, width=128, heads=2, vocabulary=96),
)
_LSTM = Row("lstm", models.lstm, (64, 16, 256), (3, 2, 256), 1.5, rate=0.1)

ROWS = {
    row.name: row
    for row in (
        *_FOUR,
        *(
            replace(
                r, name=f"{r.name}-mixed", precision="mixed", bar=_MIXED_BARS.get(r.name, r.bar)
            )
            for r in _FOUR
        ),
        *(replace(r, name=f"{r.name}-tf32", precision="tf32", bar=1.3) for r in _FOUR),
        Row("resnet50", models.resnet50, (128, 224, 224, 3), (2, 32, 32, 3), 1.2),
        _GPT2,
        replace(_GPT2, name="gpt2-mixed", precision="mixed"),
        Row("mlp", models.mlp, (64, 784), (2, 784), 2.0, "float32"),
        _LSTM,
        replace(_LSTM, name="lstm-float32", precision="float32"),
    )
}


@cache
def row_of(name: str, is_tiny: bool) -> Row:
    """A row, perhaps at a size for emulation."""
    row = ROWS[name]
    if not is_tiny:
        return row
    return replace(row, shape=row.tiny, model=row.tiny_model or row.model)


NULL, NULL_BAR = "null", 2.0  # a step that adds one to a scalar and fetches it
NAMES = (*ROWS, NULL)
