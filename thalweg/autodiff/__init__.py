"""Gradients as graphs."""

from thalweg.autodiff import gradients, registry

__all__ = ["gradients", "registry"]
