"""Linear operators, `tf.linalg.LinearOperator*`: matrices known by what they do.

`base.py` has what all do; `dense.py` and `diagonals.py` operators that hold their entries,
`combined.py` those made of others, `derived.py` adjoints, inverses and updates, `circulant.py`
those with one value on each diagonal; `matrices.py` computes with batches that broadcast.
"""

from thalweg.linear_operators import base, circulant, combined, dense, derived, diagonals, matrices

__all__ = ["base", "circulant", "combined", "dense", "derived", "diagonals", "matrices"]
