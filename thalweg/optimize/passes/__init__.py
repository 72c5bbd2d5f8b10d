"""Passes that are graph algorithms, one a file."""
