"""What to use instead of a TensorFlow name that is not here, as a phrase."""

from __future__ import annotations

from difflib import get_close_matches

from thalweg import public
from thalweg.absent import INSTEAD, row_of

_MAX_SPELLINGS = 3


def advice(name: str) -> str:
    """What to use instead of a name that is not here; empty if nobody knows."""
    if name in INSTEAD:
        return INSTEAD[name]
    other = public.similar_public_name(name.rpartition(".")[2])
    if other is not None:
        return f"use tf.{other}"
    row = row_of(name)
    if row is not None:
        return INSTEAD[row]
    near = get_close_matches(name, public.names(), _MAX_SPELLINGS, 0.8)
    return "did you mean " + " or ".join(f"tf.{each}" for each in near) + "?" if near else ""
