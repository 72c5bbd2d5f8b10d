"""What to use instead of a TensorFlow name that is not here."""

from __future__ import annotations

from functools import cache

from thalweg import absent, public
from thalweg.suggestions import closest


def advice(name: str) -> str:
    """What to use instead of a name below `tf.`; empty if nobody knows."""
    own = absent.INSTEAD.get(name)
    elsewhere = _by_leaf().get(name.rpartition(".")[2])
    if own is None and elsewhere is not None:
        return f"use tf.{elsewhere}"
    told = own or absent.advice(name)
    if told is not None:
        return told
    path, _, leaf = name.rpartition(".")
    meant = closest(leaf, public.children(path))
    return "" if meant is None else f"did you mean tf.{path + '.' if path else ''}{meant}?"


@cache
def _by_leaf() -> dict[str, str]:
    """The shortest public name that ends in a word: TensorFlow moved many from module to module."""
    names = sorted(public.names(), key=lambda each: (-each.count("."), -len(each)))
    return {name.rpartition(".")[2]: name for name in names}
