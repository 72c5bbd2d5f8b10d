"""File formats and file systems."""
