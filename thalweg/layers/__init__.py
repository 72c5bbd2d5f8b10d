"""Layers as classes and as functions: variables, maths, losses and updates under one name."""

from thalweg.layers import contrib, convolutional, core, normalization, pooling, separable

__all__ = ["contrib", "convolutional", "core", "normalization", "pooling", "separable"]
