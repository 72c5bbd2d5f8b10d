"""Scalar functions: one row each (`table`), over formulas that are written once for all targets."""
