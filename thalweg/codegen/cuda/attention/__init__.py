"""Attention and its gradients as CUDA kernels: chained products that keep no scores."""
