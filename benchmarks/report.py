"""Writes the figures as Markdown: times, first calls, memory, each ratio next to its bar."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import flows
from measure import Settings, disagreement
from works import Rival, Work

Figures = dict[str, dict[str, Any]]
LIMITS = Path(__file__).with_name("limits.toml")
DATA_COLUMNS = {
    "thalweg": "Thalweg",
    "tensorflow-session": "TensorFlow session",
    "tensorflow": "TensorFlow eager iterator",
    "torch": "torch (DataLoader, safetensors)",
}
COLUMNS = {
    "thalweg": "Thalweg",
    "tensorflow": "TensorFlow `tf.function`",
    "tensorflow-session": "TensorFlow session",
    "torch": "torch eager",
    "torch-compile": "torch.compile",
    "jax": "JAX jit",
    "jax-ahead": "JAX, not waiting",
}
TOLERANCE = 1e-3
WARM_BAR, FIRST_BAR, MEMORY_BAR = 5.0, 1.0, 1.0

METHOD = """\
Every (work, system) pair runs in a process of its own that sees {cpus} CPUs and uses {cpus}
threads, float32 throughout (no bfloat16, no TF32 mode). The processes of one work live at the
same time and take turns, round by round, each round beginning with another; {rounds} rounds of
about {seconds:g} s (at least one step, at most {most}); the time of a step is that of the best
round. While one runs, the others wait on a pipe; the largest CPU shares of idle workers and of
strangers are given below.

- **Same numbers.** All systems start from the same NumPy weights and data (noise; fixed seeds).
  The losses of the first steps, or the logits for inference, must agree: the column *agree* is
  the largest distance of any system from the median of all, relative to the largest value. Five
  steps are compared, three of the large networks; above the tolerance of 1e-3 the cell says so
  and the run fails.
- **A step** is forward, backward and update, ended when loss and weights are there. The peers'
  data already lies in their own tensors and they need not convert the loss; Thalweg is fed NumPy
  arrays in every step and returns the loss as one, through `make_callable` (but for the row
  `sess.run`).
- **Peers at their best.** TensorFlow: the graph-mode default (oneDNN on), fused optimizer
  kernels, as many inter-op as intra-op threads, `tf.function` without XLA, and where overhead
  counts also a 1.x session's callable. torch: functional calls without modules, channels-last
  images and kernels, in-place ReLU, fused optimizers, `scaled_dot_product_attention`, `nn.LSTM`
  (which torch.compile leaves eager, so that column is empty); torch.compile in its default mode
  (static shapes), forward and backward, the optimizer fused. JAX: one `jit` for the step, state
  donated, NHWC, `lax.scan` for the LSTM (unrolled for inference: faster),
  `dot_product_attention`.
- **Waiting.** The caller of a step has its loss before the next begins, on every system. JAX can
  dispatch steps without waiting for them, which hides the cost of dispatch behind the work: the
  column *not waiting* shows that for the small steps (one wait at the end of a round); it is not
  rated, since the caller of such a step has nothing in hand.
- **Models.** `models.py` has each once. The four networks follow convnet-benchmarks: 1000
  classes, no LRN, no dropout. ResNet-50 trains its batch norm with batch statistics and keeps
  moving averages. GPT: vocabulary 65, 6 heads, no dropout, embeddings not tied. Adam: β 0.9 and
  0.999, ε 1e-8 (torch adds ε in another place; at this size it does not show in the losses).
  word2vec: the host draws the samples, without accidental hits; 32 batches in turn. The null step
  adds 1 to a variable (JAX, torch: to an array on the device); torch eager has no step there but
  a single op: shown, not rated.
"""

FIRST = """\
Seconds from a written program to the result of its first step: tracing or making the graph,
planning, compiling, running once. Importing and waking the system (one training step of a
perceptron 3-100-10, so that compilers are loaded), making and loading weights and data do not
count. Empty caches; best of {first_calls} processes for Thalweg and JAX, one for the others.
*Warm*: a new process that finds Thalweg's disk cache filled by an earlier one. Ratios: JAX /
Thalweg.
"""

MEMORY = """\
MiB. The high-water mark of resident memory (`VmHWM`, reset through `/proc/self/clear_refs` after
the warm-up steps) over all rounds, less the resident memory of the same process when the system
was imported and woken (by one training step of a perceptron 3-100-10), before weights and data
were made. It holds weights, optimizer state, data, activations, workspaces and whatever compiling
left behind. Free heap pages are handed back (`gc.collect`, `malloc_trim`) before both readings,
on every system. Child processes do not count. Ratio: least of the peers / Thalweg.
"""


DATA = """\
A step is one way of the data: a value in and out of a queue, a pass over all records, a checkpoint.
Systems, rounds and processes are as above; what came out must agree (*agree*), for a checkpoint by
reading numbers of every tensor back from the files, outside the rounds.

- **Queues** are filled and emptied by steps of a session's callable, as in 1.x programs. The
  megabytes are computed by the enqueuing step.
- **Pipelines.** The consumer looks at every batch as a NumPy array. TensorFlow: by a session, and
  by its eager iterator (`as_numpy_iterator`), which rebuilds the dataset for each pass.
  `DataLoader`: {workers} worker processes that stay between passes, {ahead} batches ahead each,
  records mapped one by one in `__getitem__`. Of an elementwise function Thalweg makes one of whole
  batches by itself; the second row has a function of which it does not (it takes a maximum).
- **Saving.** Thalweg writes to the side, past the page cache, with a checksum of every block, syncs
  the file, renames it, and syncs the folder: when `save` returns, the checkpoint is on the disk.
  TensorFlow's Saver (which has checksums too) and `safetensors.torch.save_file` (which has none)
  write to the side and rename as well, but sync nothing: they return when the page cache has the
  bytes, and the disk is written later. In the row *synced* `fsync` is called on their files, so
  that all have the same in hand; the other row is as they are. Before each round all that is dirty
  is written out (`sync`), untimed.
- **Restoring** is from files in the page cache into variables that exist: torch's tensors, which
  `load_file` maps, are copied into others by `copy_`, as `load_state_dict` does. Thalweg and
  TensorFlow check the checksums.
- **Training while saving.** Two processes of Thalweg take turns: one trains, the other trains and
  begins a checkpoint in the background whenever there is none under way. {least} steps a round.
"""


def rated(work: Work, figures: Figures, key: str) -> float | None:
    """Best peer / Thalweg."""
    peers = [
        f[key]
        for name, f in figures.items()
        if name != "thalweg" and name not in work.unrated and f[key]
    ]
    own = figures.get("thalweg", {}).get(key)
    return min(peers) / own if peers and own else None


def against_jax(figures: Figures, key: str) -> float | None:
    """JAX's first call / Thalweg's."""
    own, jax = figures.get("thalweg", {}).get(key), figures.get("jax", {}).get("first")
    return jax / own if own and jax else None


def row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def cell(figures: Figures, system: str, key: str, show: Callable[[float], str]) -> str:
    """One figure, or why there is none."""
    if system not in figures:
        return ""
    value = figures[system].get(key)
    return show(value) if value else ("failed" if figures[system]["error"] else "–")


def time_text(seconds: float) -> str:
    """Seconds in the unit that reads best."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1e3:.2f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join([row(head), "|---" * len(head) + "|", *map(row, rows)])


def agreement(figures: Figures) -> str:
    """How far the results lie apart."""
    apart = disagreement(figures)
    if len(apart) < 2:
        return "–"
    verdict = "".join(f" **{name} is off**" for name in strays(figures))
    return f"{max(apart.values()):.0e}{verdict}"


def strays(figures: Figures) -> list[str]:
    """The systems whose results are not those of the others; not a number is never right."""
    return [name for name, distance in disagreement(figures).items() if not distance <= TOLERANCE]


def sound(results: Sequence[tuple[Work, Figures]]) -> bool:
    """Whether every system finished every work with the results of the others."""
    errors = any(f["error"] for _, figures in results for f in figures.values())
    return not errors and not any(strays(figures) for _, figures in results)


def line(work: Work, figures: Figures, seconds: float) -> str:
    """One work in one line, while the rest is still being measured."""
    cells = [f"{name} {cell(figures, name, 'best', time_text)}" for name in figures]
    apart = agreement(figures)
    return f"{work.name} ({seconds:.0f} s): {', '.join(cells)}; agree {apart}"


def against(work: Work, figures: Figures, rival: Rival) -> float | None:
    """The best of a rival's systems / Thalweg."""
    theirs = [figures[s]["best"] for s in rival.systems if s in figures and figures[s]["best"]]
    own = figures.get(work.own, {}).get("best")
    return min(theirs) / own if theirs and own else None


def data(results: Sequence[tuple[Work, Figures]]) -> str:
    """Works that move data, each rival's ratio with its bar."""
    head = ["work", *DATA_COLUMNS.values(), "ratios (bars)", "agree"]
    rows = [
        [
            work.title,
            *(cell(figures, system, "best", time_text) for system in DATA_COLUMNS),
            ratios(work, figures),
            agreement(figures),
        ]
        for work, figures in results
        if work.own == "thalweg"
    ]
    return table(head, rows)


def ratios(work: Work, figures: Figures) -> str:
    """Each rival's ratio with its bar."""
    each = [
        f"{rival.title} {ratio(against(work, figures, rival))} ({rival.bar:g})"
        for rival in work.rivals
    ]
    return ", ".join(each)


def slowdowns(results: Sequence[tuple[Work, Figures]]) -> str:
    """Works whose rival is the same step undisturbed."""
    head = ["work", "alone", "meanwhile", "alone / meanwhile (bar)", "agree"]
    rows = [
        [
            work.title,
            cell(figures, "thalweg", "best", time_text),
            cell(figures, work.own, "best", time_text),
            ratios(work, figures),
            agreement(figures),
        ]
        for work, figures in results
        if work.own != "thalweg"
    ]
    return table(head, rows)


def times(results: Sequence[tuple[Work, Figures]]) -> str:
    """Time of a step."""
    head = ["work", *COLUMNS.values(), "best peer / Thalweg", "bar", "agree"]
    rows = [
        [
            work.title,
            *(cell(figures, system, "best", time_text) for system in COLUMNS),
            ratio(rated(work, figures, "best")),
            f"{work.bar:g}",
            agreement(figures),
        ]
        for work, figures in results
    ]
    return table(head, rows)


def first_calls(results: Sequence[tuple[Work, Figures]]) -> str:
    """Time of the first call."""
    head = ["work", "Thalweg", "Thalweg, warm", *list(COLUMNS.values())[1:]]
    head += [f"JAX / Thalweg (bar {FIRST_BAR:g})", f"JAX / warm (bar {WARM_BAR:g})"]

    def seconds(value: float) -> str:
        return f"{value:.3f}"

    rows = [
        [
            work.title,
            cell(figures, "thalweg", "first", seconds),
            cell(figures, "thalweg", "warm", seconds),
            *(cell(figures, system, "first", seconds) for system in list(COLUMNS)[1:]),
            ratio(against_jax(figures, "first")),
            ratio(against_jax(figures, "warm")),
        ]
        for work, figures in results
    ]
    return table(head, rows)


def memory(results: Sequence[tuple[Work, Figures]]) -> str:
    """Peak memory of the training steps."""
    head = ["work", *COLUMNS.values(), f"least peer / Thalweg (bar {MEMORY_BAR:g})"]
    rows = [
        [
            work.title,
            *(cell(figures, system, "peak", lambda b: f"{b / 2**20:.0f}") for system in COLUMNS),
            ratio(rated(work, figures, "peak")),
        ]
        for work, figures in results
        if work.trains
    ]
    return table(head, rows)


def bars(work: Work, figures: Figures) -> list[tuple[str, float | None, float]]:
    """What is rated of a work, its ratio and its bar."""
    if work.rivals:
        return [(f"time, {r.title}", against(work, figures, r), r.bar) for r in work.rivals]
    return [
        ("time", rated(work, figures, "best"), work.bar),
        ("first call", against_jax(figures, "first"), FIRST_BAR),
        ("warm first call", against_jax(figures, "warm"), WARM_BAR),
        ("memory", rated(work, figures, "peak") if work.trains else None, MEMORY_BAR),
    ]


def short(results: Sequence[tuple[Work, Figures]]) -> str:
    """Each ratio below its bar, with what `limits.toml` says limits it."""
    reasons = tomllib.loads(LIMITS.read_text()) if LIMITS.exists() else {}
    lines: list[str] = []
    for work, figures in results:
        for what, value, bar in bars(work, figures):
            if value is not None and value < bar:
                reason = reasons.get(work.name, {}).get(what, "")
                line = f"- {work.title}, {what}: {value:.2f} of {bar:g}"
                lines.append(f"{line}. {reason}".rstrip())
    return "\n".join(lines) or "None."


def notes(results: Sequence[tuple[Work, Figures]]) -> str:
    """Idle shares and failures."""
    every = [(work, name, f) for work, figures in results for name, f in figures.items()]
    work, name, most = max(every, key=lambda each: each[2]["idle_share"])
    foreign = max(f["foreign_share"] for _, _, f in every)
    lines = [
        f"Largest CPU share of an idle worker: {most['idle_share']:.0%} ({name}, {work.name}); of "
        f"processes outside the benchmark, over all rounds of a work: {foreign:.0%}.",
    ]
    lines += [f"- {work.name}: {f['error'].splitlines()[0]}" for work, _, f in every if f["error"]]
    return "\n".join(lines)


def steps(results: Sequence[tuple[Work, Figures]], settings: Settings) -> str:
    """All sections about steps."""
    method = METHOD.format(
        cpus=len(settings.cpus),
        rounds=settings.rounds,
        seconds=settings.round_seconds,
        most=settings.most_steps,
    )
    plain = [result for result in results if not result[0].rivals]
    moving = [result for result in results if result[0].rivals]
    parts = ["## Method\n", method, notes(results) + "\n"]
    if plain:
        parts += [
            "## Time of a step\n",
            times(plain) + "\n",
            "## First call\n",
            FIRST.format(first_calls=settings.first_calls),
            first_calls(plain) + "\n",
            "## Peak memory of the training steps\n",
            MEMORY,
            memory(plain) + "\n",
        ]
    if moving:
        least = max(work.least_steps for work, _ in moving)
        text = DATA.format(workers=flows.WORKERS, ahead=flows.AHEAD, least=least)
        parts += ["## Data and checkpoints\n", text, data(moving) + "\n"]
        parts += [slowdowns(moving) + "\n"]
    parts += ["## Short of the bar\n", short(results) + "\n"]
    return "\n".join(parts)
