"""Conditionals and loops as native programs."""
