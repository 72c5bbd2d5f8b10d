"""The tests of libraries that were written for TensorFlow 1, run against Thalweg under the alias.

    python -m tools.library_tests FOLDER [--only keras-2.2.4] [--file backend] [--markdown PAGE]

FOLDER holds the sources of each library under the name that `LIBRARIES` (`table.py`) gives it.
"""
