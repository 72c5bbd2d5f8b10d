"""The basis of all other ops: constants, placeholders, casts, shapes, checks, Python calls."""
