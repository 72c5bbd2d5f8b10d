"""Losses: functions of labels and predictions, kept in a collection of the graph."""

from thalweg.losses import collection, functions, matching, reduction, sequences

__all__ = ["collection", "functions", "matching", "reduction", "sequences"]
