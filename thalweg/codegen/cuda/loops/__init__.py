"""Loop kernels on a grid: how loops are laid on threads, and the kernels that come of it."""
