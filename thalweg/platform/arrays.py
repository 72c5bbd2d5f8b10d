"""The type of arrays whose dtype is known when the program runs."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]
