"""File formats and file systems, local and remote."""
