"""Training with many workers: placement of variables, and synchronisation of updates."""
