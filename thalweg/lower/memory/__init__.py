"""Buffers, the arena, and the barriers between kernels that share memory."""
