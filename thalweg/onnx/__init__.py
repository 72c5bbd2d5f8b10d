"""ONNX models in and out: `tf.onnx.load` and `tf.onnx.export`. They need the package `onnx`.

The modules below, which fill the tables of operators, are imported by the first use of a public
name; the package `onnx` when a model is loaded or written.
"""

from thalweg.public import publish_from

publish_from("thalweg.onnx.complete", "onnx.load", "onnx.export")
