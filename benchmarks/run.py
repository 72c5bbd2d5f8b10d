"""All benchmarks, written to benchmarks/RESULTS.md."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import graphs
import numpy as np
import steps

import thalweg as tf

RESULTS = Path(__file__).with_name("RESULTS.md")


def main() -> None:
    """Run everything and write the results."""
    parts = [
        "# Results\n",
        f"`make bench`, Thalweg {tf.__version__}, Python {platform.python_version()}, "
        f"NumPy {np.__version__}, {os.cpu_count()} cores. Compare only within one run.\n",
        "## Steps\n",
        steps.table() + "\n",
        "## Graphs\n",
        f"{graphs.__doc__.strip()}\n",
        graphs.table() + "\n",
    ]
    text = "\n".join(parts)
    RESULTS.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
