"""The text form of kernels: `printer` writes it, `parser` reads it back."""
