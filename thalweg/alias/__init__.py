"""Thalweg under the name `tensorflow`, for programs and libraries that must stay as they are.

    import thalweg.alias
    thalweg.alias.install()
    import tensorflow as tf          # is Thalweg

or `thalweg run script.py`. Nothing is done unless it is asked for. `paths.py` is the table of
TensorFlow's modules, `finder.py` makes them when they are imported, `names.py` finds their names,
`inside/` has helpers of TensorFlow's own that libraries call, `libraries/` the packages of other
people that were a part of TensorFlow (tf-slim, Keras, Estimator). `early.py` has what names meant
in TensorFlow 0.12, `legacy.py` and `old_arrays.py` what left Python and NumPy since. `children.py`
passes all of it on to the processes that a program starts.
"""

from thalweg.alias.libraries.places import publish
from thalweg.alias.switch import VERSIONS, install, installed, uninstall

publish()

__all__ = ["VERSIONS", "install", "installed", "uninstall"]
