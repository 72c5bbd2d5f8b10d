"""Contractions on GPUs: products, convolutions and their gradients by one generator."""
