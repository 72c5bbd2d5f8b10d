"""Modules of `tensorflow.python` about graphs, devices, files and tests."""
