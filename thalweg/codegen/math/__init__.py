"""Expressions and mathematical functions in registers."""
