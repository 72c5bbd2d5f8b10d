"""Kernels for NVIDIA GPUs, over an abstract grid that is NVPTX or an emulation on the host."""
