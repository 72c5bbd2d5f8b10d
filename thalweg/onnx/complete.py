"""Reading and writing models, with the tables of all operators filled."""

from thalweg.onnx import exporting, loading, ops, writers

__all__ = ["exporting", "loading", "ops", "writers"]
