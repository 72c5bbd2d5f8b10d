"""Convolutions by Winograd's algorithm."""

import os

#: Whether there is any: without, every convolution is the plain sum of its products.
ENABLED = os.environ.get("THALWEG_WINOGRAD", "1") != "0"
