"""Modules of `tensorflow.python.keras`, on which Keras 2.3.1 and Estimator stand."""
