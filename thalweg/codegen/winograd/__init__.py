"""Convolutions by Winograd's algorithm."""

import os

#: Whether Winograd's algorithm is used at all.
ENABLED = os.environ.get("THALWEG_WINOGRAD", "1") != "0"
