"""What every other op leans on: constants, placeholders, casts, shapes, checks, Python calls."""
