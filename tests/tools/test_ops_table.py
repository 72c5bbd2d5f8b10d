"""The table of ops in the docs is what the registry says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_registry_says(tmp_path: Path) -> None:
    page = tmp_path / "ops.md"  # by a process of its own: tests register ops
    command = [sys.executable, ROOT / "tools" / "ops_table.py", page]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert (ROOT / "docs" / "ops.md").read_text() == page.read_text(), "make docs writes it"
