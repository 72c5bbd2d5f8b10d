"""Machine code for loop kernels."""
