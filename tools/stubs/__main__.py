"""python -m tools.stubs [DIRECTORY]: write the stubs, by default to where the build has them."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.stubs.write import DIRECTORY, write

write(Path(sys.argv[1]) if len(sys.argv) > 1 else DIRECTORY)
