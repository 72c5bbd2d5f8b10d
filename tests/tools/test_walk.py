"""The tool that counts the files and calls of a step's phases."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_second_run_walks_least() -> None:
    done = subprocess.run(
        [sys.executable, "tools/walk.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    calls = [
        int(n.replace(",", "")) for n in re.findall(r"([\d,]+) \|$", done.stdout, re.MULTILINE)
    ]
    assert len(calls) == 4
    assert 0 < calls[3] < calls[0] < calls[2]
