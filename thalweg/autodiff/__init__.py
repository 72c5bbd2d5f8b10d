"""Gradients as graphs."""

from thalweg.autodiff import custom, gradients, registry

__all__ = ["custom", "gradients", "registry"]
