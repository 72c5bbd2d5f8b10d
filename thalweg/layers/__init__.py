"""Layers as classes and as functions: variables, maths, losses and updates under one name."""

from thalweg.layers import convolutional, core, normalization, pooling, separable

__all__ = ["convolutional", "core", "normalization", "pooling", "separable"]
