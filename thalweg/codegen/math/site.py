"""Where a function of an expression is called: the builder, the dtypes, and which lanes count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from thalweg.codegen.llvm.builder import Builder, Value

#: Told of a scalar condition that must not be: some lane divides by zero.
Fault = Callable[[Builder, Value], None]


@dataclass(frozen=True)
class Site:
    """A call of a function in the making.

    `dtypes` are those of NumPy's loop, inputs first, then the output; `mask` says which lanes count
    (None: all of them).
    """

    builder: Builder
    dtypes: tuple[np.dtype[Any], ...]
    mask: Value | None = None
    fault: Fault | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the first input, which most functions share among all."""
        return self.dtypes[0]

    @property
    def signed(self) -> bool:
        """Whether elements are signed integers."""
        return self.dtype.kind == "i"
