"""NVIDIA GPUs: the driver and its emulation, memory, and programs that run as CUDA graphs."""
