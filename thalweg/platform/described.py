"""One line about an object, for its `repr`: its public class, its name and a few facts."""

from __future__ import annotations

from thalweg.public import name_of


def described(value: object, name: str | None = None, /, **facts: object) -> str:
    """`<tf.train.AdamOptimizer 'Adam' learning_rate=0.1>`; facts that are None are left out."""
    words = [name_of(type(value)), *([] if name is None else [repr(name)])]
    words += [f"{fact}={_line(shown)}" for fact, shown in facts.items() if shown is not None]
    return f"<{' '.join(words)}>"


def _line(value: object) -> str:
    return " ".join(str(value).split())
