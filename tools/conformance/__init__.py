"""The conformance run: TensorFlow's test files, each in a process where Thalweg is `tensorflow`.

`main` reads the options, `suite` finds the files and runs the processes, `worker` is what runs in
each of them, `alias` and `legacy` make the names that the tests import, `report` counts.
"""
