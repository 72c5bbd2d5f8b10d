"""ONNX models in and out: `tf.onnx.load` and `tf.onnx.export`. They need the package `onnx`.

Importing this package registers its public names and fills the tables of operators; the package
`onnx` is imported when a model is loaded or written.
"""

from thalweg.onnx import exporting, loading, ops, writers

__all__ = ["exporting", "loading", "ops", "writers"]
