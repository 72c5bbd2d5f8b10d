"""The works of the benchmark: which model, which data, which optimizer, and the bar to reach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import models
import numpy as np

Batch = tuple[np.ndarray, ...]
GRAPH_SYSTEMS = ("tensorflow", "tensorflow-session")
TORCH_SYSTEMS = ("torch", "torch-compile")
ALL_SYSTEMS = ("thalweg", *GRAPH_SYSTEMS, *TORCH_SYSTEMS, "jax", "jax-ahead")
# Where kernels take all the time, neither the way into TensorFlow's graph mode nor waiting matters.
LARGE_SYSTEMS = tuple(s for s in ALL_SYSTEMS if s not in ("tensorflow-session", "jax-ahead"))


@dataclass(frozen=True)
class Rival:
    """Systems of which the best is compared with, and by what factor it is to be beaten."""

    title: str
    bar: float
    systems: tuple[str, ...]


@dataclass(frozen=True)
class Work:
    """One row of the results."""

    name: str
    title: str
    kind: str  # "train", "infer", a key of SPECIAL, "counter", "chain" or "null-…"
    bar: float
    model: Callable[[Any, Any], Any] | None = None
    example: tuple[int, ...] = ()  # the shape of one example
    batch: int = 1
    optimizer: str = "sgd"
    rate: float = 0.0
    steps_checked: int = 5
    least_steps: int = 1  # in a round
    systems: tuple[str, ...] = ALL_SYSTEMS
    unrated: tuple[str, ...] = ("jax-ahead",)  # measured and shown, but left out of the ratio
    eager: bool = False  # run as it is written: no session, no compiled function
    rivals: tuple[Rival, ...] = ()  # with a bar for each, instead of one for the best
    own: str = "thalweg"  # the system that is rated

    @property
    def moves_data(self) -> bool:
        """Whether a step is no computation, but data on its way."""
        return self.kind in FLOW_KINDS

    @property
    def trains(self) -> bool:
        """Whether weights change in a step."""
        return self.kind == "train" or self.kind in SPECIAL

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of the model's input; the LSTM's is time-major."""
        if self.model is models.lstm:
            return (self.example[0], self.batch, *self.example[1:])
        return (self.batch, *self.example)

    def declarations(self) -> dict[str, tuple[models.Shape, float | None]]:
        """Shape and deviation of each weight."""
        if self.kind in SPECIAL:
            return SPECIAL[self.kind][0]
        return models.declarations(self.model, self.input_shape) if self.model else {}

    def weights(self) -> dict[str, np.ndarray]:
        """Initial weights by name."""
        return {name: models.initial(name, *kind) for name, kind in self.declarations().items()}

    def batches(self) -> list[Batch]:
        """The data: step i takes number i modulo their count."""
        if self.kind in SPECIAL:
            _, make, count = SPECIAL[self.kind]
            return [make(i) for i in range(count)]
        if self.kind == "counter":
            return [(np.array(COUNTED, np.int32),)]
        if self.kind == "chain":
            return [(np.random.default_rng(7).random(CHAINED, np.float32),)]
        return [data(self)] if self.model else [()]


def data(work: Work) -> Batch:
    """Inputs, and labels when training: noise."""
    rng = np.random.default_rng(7)
    x = work.input_shape
    if work.model is models.gpt:
        tokens = rng.integers(0, 65, (x[0], x[1] + 1), np.int32)
        inputs, labels = np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])
    else:
        inputs = rng.standard_normal(x, np.float32)
        logits = work.model(models.Shapes(), x)
        labels = rng.integers(0, logits[-1], logits[:-1], np.int32)
    return (inputs, labels) if work.trains else (inputs,)


VOCABULARY, WIDTH, WORDS, SAMPLES = 50_000, 128, 128, 64
WORD2VEC_WEIGHTS = {
    "embedding": ((VOCABULARY, WIDTH), 0.5),
    "softmax": ((VOCABULARY, WIDTH), 0.1),
    "bias": ((VOCABULARY,), None),
}


def word2vec_batch(i: int) -> Batch:
    """Words, targets, sampled ids and the logarithms of both expected counts, log-uniform.

    The host draws the samples, without repetition and outside the batch's targets, so that all
    systems compute the same and none has accidental hits to remove.
    """
    rng = np.random.default_rng(100 + i)
    words, targets = (log_uniform(rng, WORDS) for _ in range(2))
    fresh = np.setdiff1d(log_uniform(rng, 20 * SAMPLES), targets)
    sampled = rng.permutation(fresh)[:SAMPLES].astype(np.int64)
    return words, targets, sampled, expected(targets), expected(sampled)


def log_uniform(rng: np.random.Generator, count: int) -> np.ndarray:
    """Ids with Zipf's law."""
    return (np.exp(rng.random(count) * np.log(VOCABULARY + 1)) - 1).astype(np.int64)


def expected(ids: np.ndarray) -> np.ndarray:
    """How often each id is expected among the samples."""
    probability = np.log((ids + 2) / (ids + 1)) / np.log(VOCABULARY + 1)
    return (-np.expm1(SAMPLES * np.log1p(-probability))).astype(np.float32)


COUNTED = 1_000_000
CHAINED = 1_000_000
STEPS, STATE = 10_000, 64
UNITS, CLASSES, SEQUENCES, SHORTEST, LONGEST = 256, 64, 16, 5, 100
SEQUENCE_WEIGHTS = {
    "lstm/kernel": ((2 * UNITS, 4 * UNITS), (1 / (2 * UNITS)) ** 0.5),
    "lstm/bias": ((4 * UNITS,), None),
    "logits/kernel": ((UNITS, CLASSES), (1 / UNITS) ** 0.5),
    "logits/bias": ((CLASSES,), None),
}


def recurrence_batch(i: int) -> Batch:
    """What enters a recurrence, step by step."""
    return (np.random.default_rng(200 + i).standard_normal((STEPS, STATE), np.float32),)


def sequence_batch(i: int) -> Batch:
    """Sequences, time-major, the longest first; their lengths; labels. Beyond the ends is noise."""
    rng = np.random.default_rng(300 + i)
    lengths = np.sort(rng.integers(SHORTEST, LONGEST + 1, SEQUENCES, np.int32))[::-1].copy()
    lengths[0] = LONGEST
    x = rng.standard_normal((LONGEST, SEQUENCES, UNITS), np.float32)
    return x, lengths, rng.integers(0, CLASSES, (LONGEST, SEQUENCES), np.int32)


# What is no model of layers: weights, the maker of batch i, how many batches.
SPECIAL: dict[str, tuple[dict[str, Any], Callable[[int], Batch], int]] = {
    "word2vec": (WORD2VEC_WEIGHTS, word2vec_batch, 32),
    "recurrence": ({"decay": ((STATE,), 0.5)}, recurrence_batch, 1),
    "sequences": (SEQUENCE_WEIGHTS, sequence_batch, 4),
}


def train(name: str, title: str, bar: float, **options: Any) -> Work:
    """A training step."""
    return Work(name, title, "train", bar, **options)


def large(name: str, title: str, model: Any, side: int, batch: int = 16) -> Work:
    """A training step of a network on images, by gradient descent."""
    return train(
        name,
        f"{title}, batch {batch}, SGD train",
        1.0,
        model=model,
        example=(side, side, 3),
        batch=batch,
        rate=2e-6,
        steps_checked=3,
        systems=LARGE_SYSTEMS,
    )


def inference(work: Work, title: str) -> Work:
    """The same model, forward only, one example."""
    name = work.name.split("-")[0] + "-infer"
    return replace(
        work, name=name, title=f"{title}, inference, batch 1", kind="infer", bar=1.2, batch=1
    )


NULLS = [
    Work(
        "null-run",
        "null step (scalar + 1), `sess.run`",
        "null-run",
        1.0,
        unrated=("torch", "jax-ahead"),
    ),
    Work(
        "null-callable",
        "null step, `make_callable`",
        "null-callable",
        2.0,
        unrated=("torch", "jax-ahead"),
    ),
]
PERCEPTRONS = [
    train(
        f"mlp-{batch}",
        f"MLP 784-100-10, batch {batch}, SGD train",
        bar,
        model=models.mlp,
        example=(784,),
        batch=batch,
        rate=1e-3,
    )
    for batch, bar in ((1, 2.5), (64, 2.0))
]
LSTM = train(
    "lstm",
    "LSTM 2x256, 64 steps, batch 16, SGD train",
    1.3,
    model=models.lstm,
    example=(64, 256),
    batch=16,
    rate=0.1,
    systems=tuple(s for s in ALL_SYSTEMS if s != "torch-compile"),
)
LENET = train(
    "lenet",
    "LeNet-like CNN on 28x28, batch 64, Adam train",
    1.5,
    model=models.lenet,
    example=(28, 28, 1),
    batch=64,
    optimizer="adam",
    rate=1e-4,
)
LARGE = [
    large("alexnet", "AlexNet", models.alexnet, 224),
    large("overfeat", "OverFeat", models.overfeat, 231),
    large("oxfordnet", "OxfordNet (VGG-A)", models.oxfordnet, 224),
    large("googlenet", "GoogleNet", models.googlenet, 224),
    large("resnet50", "ResNet-50", models.resnet50, 224, batch=8),
]
GPT = train(
    "gpt",
    "GPT 6 layers, width 384, 256 tokens, batch 4, Adam train",
    1.2,
    model=models.gpt,
    example=(256,),
    batch=4,
    optimizer="adam",
    rate=1e-4,
    systems=LARGE_SYSTEMS,
)
WORD2VEC = Work(
    "word2vec",
    "word2vec, vocabulary 50k, width 128, batch 128, 64 samples, sparse SGD",
    "word2vec",
    3.0,
    rate=0.1,
    batch=WORDS,
)
LOOP_SYSTEMS = tuple(s for s in ALL_SYSTEMS if s != "torch-compile")
LOOPS = [
    Work(
        "counter",
        "counter, a loop of 1,000,000 iterations",
        "counter",
        1.0,
        systems=tuple(s for s in LOOP_SYSTEMS if s != "torch"),
    ),
    Work(
        "recurrence",
        "`scan` of 10,000 steps of width 64, SGD train",
        "recurrence",
        1.5,
        rate=0.1,
        systems=LOOP_SYSTEMS,
    ),
    Work(
        "sequences",
        "LSTM 256 by `dynamic_rnn`, batch 16, lengths 5 to 100, SGD train",
        "sequences",
        1.5,
        rate=0.1,
        batch=SEQUENCES,
        systems=LOOP_SYSTEMS,
    ),
]
EAGER_SYSTEMS = ("thalweg", "tensorflow", "torch")
EAGER = [
    Work(
        "chain",
        "eager: chain of 20 elementwise ops on 1M floats",
        "chain",
        2.0,
        systems=(*EAGER_SYSTEMS, "jax"),
        unrated=("tensorflow", "jax"),
        eager=True,
    ),
    Work(
        "chain-graph",
        "the same chain as a compiled graph",
        "chain",
        1.0,
        systems=("thalweg", "tensorflow", "torch-compile", "jax"),
        unrated=(),
    ),
    replace(
        PERCEPTRONS[1],
        name="mlp-eager",
        title="eager: MLP 784-100-10, batch 32, SGD train",
        bar=1.5,
        batch=32,
        systems=EAGER_SYSTEMS,
        unrated=("tensorflow",),
        eager=True,
    ),
    Work(
        "null-function",
        "`@tf.function` of a scalar + 1, called",
        "null-function",
        1.0,
        systems=("thalweg", "tensorflow", "jax"),
        unrated=("tensorflow",),
        eager=True,
    ),
]
FLOW_KINDS = (
    *("queue-scalar", "queue-megabyte", "pipeline", "pipeline-rows"),
    *("save", "save-synced", "restore", "records"),
)


def flow(kind: str, title: str, tensorflow: Rival, torch: float = 0.0, checked: int = 2) -> Work:
    """Data on its way, beside TensorFlow and, where it has a bar, torch."""
    rivals = (tensorflow, *([Rival("torch", torch, ("torch",))] if torch else []))
    systems = ("thalweg", *(name for rival in rivals for name in rival.systems))
    return Work(
        kind, title, kind, 0.0, steps_checked=checked, systems=systems, unrated=(), rivals=rivals
    )


def session(bar: float) -> Rival:
    """TensorFlow by a session."""
    return Rival("TensorFlow", bar, ("tensorflow-session",))


FLOWS = [
    flow("queue-scalar", "queue: a scalar in and out, a step each", session(5.0), checked=5),
    flow("queue-megabyte", "queue: 8 tensors of 1 MB in, a batch of 8 out", session(1.0)),
    flow(
        "pipeline",
        "`tf.data`: 100,000 records, map, batch 128, prefetch 2",
        Rival("TensorFlow", 2.0, GRAPH_SYSTEMS),
        torch=3.0,
    ),
    flow(
        "pipeline-rows",
        "the same with a function of each record by itself",
        Rival("TensorFlow", 2.0, GRAPH_SYSTEMS),
        torch=3.0,
    ),
    flow("save-synced", "save 1 GiB in 64 tensors, synced to the disk", session(1.5), torch=1.0),
    flow("save", "save 1 GiB, the peers' files left to the page cache", session(1.5), torch=1.0),
    flow("restore", "restore 1 GiB into variables", session(1.5), torch=1.0),
    flow("records", "read 100,000 TFRecords of 200 bytes", session(2.0)),
    replace(
        GPT,
        name="train-saving",
        title="the GPT's training step while checkpoints are written",
        least_steps=10,
        systems=("thalweg", "thalweg-saving"),
        rivals=(Rival("Thalweg, not saving", 0.95, ("thalweg",)),),
        own="thalweg-saving",
    ),
]
# Wakes a system: loads what it loads at the first use of a step, whatever the model.
TINY = train("tiny", "", 0.0, model=models.mlp, example=(3,), batch=2, rate=0.01)
TITLES = ["MLP", "LSTM", "LeNet-like CNN", "AlexNet", "OverFeat", "OxfordNet", "GoogleNet"]
TITLES += ["ResNet-50", "GPT (256 tokens at once)"]
TRAINED = [PERCEPTRONS[0], LSTM, LENET, *LARGE, GPT]
INFERENCES = [inference(work, title) for work, title in zip(TRAINED, TITLES, strict=True)]
STEPS_OF_MODELS = [*PERCEPTRONS, LSTM, LENET, *LARGE, GPT, *INFERENCES, WORD2VEC]
WORKS = [*NULLS, *STEPS_OF_MODELS, *LOOPS, *EAGER, *FLOWS]


def choose(names: list[str]) -> list[Work]:
    """The works with these names; a name that none has stands for all that begin with it."""
    if not names:
        return WORKS
    known = {work.name for work in WORKS}
    wider = tuple(f"{name}-" for name in names if name not in known)
    return [w for w in WORKS if w.name in names or w.name.startswith(wider)]


def named(name: str) -> Work:
    """The work of this name."""
    return next(work for work in WORKS if work.name == name)
