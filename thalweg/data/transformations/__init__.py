"""Transformations of datasets: map, batch, shuffle, window and the like."""
