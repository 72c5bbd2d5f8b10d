"""Helpers from inside TensorFlow that libraries call: one file for each of its modules,
in folders by subject.

Nothing of Thalweg itself uses them; `thalweg/alias/paths.py` says which module finds which file.
"""
