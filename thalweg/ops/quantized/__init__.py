"""Quantized tensors, and quantization-aware training."""
