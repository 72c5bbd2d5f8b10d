"""Kernels for NVIDIA GPUs: one text over an abstract grid, for NVPTX or for its emulation here."""
