"""Passes that are lists of rules, one a file."""
