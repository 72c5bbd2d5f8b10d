"""One-line `repr`s: an object's public class, its name and some attributes."""

from __future__ import annotations

from thalweg.public import name_of


def described(value: object, name: str | None = None, /, **facts: object) -> str:
    """`<tf.train.AdamOptimizer 'Adam' learning_rate=0.1>`; facts that are None are left out."""
    words = [name_of(type(value)), *([] if name is None else [repr(name)])]
    words += [f"{key}={_line(fact)}" for key, fact in facts.items() if fact is not None]
    return f"<{' '.join(words)}>"


def _line(value: object) -> str:
    return " ".join(str(value).split())
