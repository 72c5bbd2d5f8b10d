"""The differential fuzzer: random calls of public functions on Thalweg and on TensorFlow.

`python -m tools.fuzz_tf --peer PYTHON` draws cases from the table of call specs (`specs/`), runs
each in two worker processes (`worker.py`), compares what they say (`compare.py`) and prints the
disagreements that no row of `known.py` explains, grouped, each with a program to paste.
"""
