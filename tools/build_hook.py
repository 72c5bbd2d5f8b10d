"""Writes the type stubs when a wheel is built or the repository is installed to be worked on.

Hatch runs this with the package's own dependencies at hand: stubs are made from the registry of
public names, which is there once the package is imported.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class StubsHook(BuildHookInterface):
    """Makes `thalweg-stubs`, which lies beside `thalweg` where that is installed.

    In the repository it lies apart: the library itself is checked by its sources, not its stubs.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before files are gathered."""
        sys.path.insert(0, self.root)
        from tools.stubs.write import DIRECTORY, write

        stubs = Path(self.root) / DIRECTORY
        write(stubs)
        if version != "editable":
            build_data["force_include"][str(stubs)] = stubs.name
