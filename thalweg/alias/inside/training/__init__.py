"""Modules of `tensorflow.python` about layers, metrics, training and saved models."""
