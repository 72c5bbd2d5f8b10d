"""Formatting of counts and byte sizes for people."""

from __future__ import annotations


def plural(count: int, word: str) -> str:
    """A count with its noun: `1 kernel`, `3 kernels`."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def amount(number: float) -> str:
    """A number with an SI prefix: `10.1 M`."""
    for unit in ("", " k", " M", " G"):
        if number < 1000:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:,.4g} T"


def size(count: float) -> str:
    """A number of bytes with an SI prefix: `580 kB`."""
    text = amount(count)
    return f"{text}B" if " " in text else f"{text} B"
