"""`tensorflow.python.training.tracking`: objects that know what they hold.

Thalweg saves variables by name, so these are plain objects.
"""

from __future__ import annotations


class AutoTrackable:
    """A base class without duties."""


Trackable = AutoTrackable
