"""Kernels to machine code: LLVM text, vector mathematics, targets, and the cache of objects."""
