"""Attention and its gradients as CUDA kernels: chained products that do not store scores."""
