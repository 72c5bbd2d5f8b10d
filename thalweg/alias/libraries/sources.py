"""Imports modules of known libraries with their patches, while the alias is on."""

from __future__ import annotations

import importlib.abc
import warnings
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType
from typing import Any

from thalweg.alias.libraries.library import Patch


class PatchingFinder(importlib.abc.MetaPathFinder):
    """Finds modules where Python finds them; those that need patches get a loader for that."""

    def __init__(self, patches: list[Patch]) -> None:
        self.patches = patches
        self.packages = {patch.modules.partition(".")[0].rstrip("*") for patch in patches}

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """The spec of a module of a known package; None for all others."""
        if fullname.partition(".")[0] not in self.packages:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        wanted = [patch for patch in self.patches if patch.holds_for(fullname)]
        if spec is None or not wanted or not isinstance(spec.loader, SourceFileLoader):
            return spec
        spec.loader = _PatchingLoader(fullname, spec.loader.path, wanted)
        return spec


class _PatchingLoader(SourceFileLoader):
    """Loads a module from its patched source; compiled code is not kept, nor used."""

    def __init__(self, fullname: str, path: str, patches: list[Patch]) -> None:
        super().__init__(fullname, path)
        self.patches = patches

    def get_code(self, fullname: str) -> CodeType | None:
        source = self.get_source(fullname) or ""
        patched = source
        for patch in self.patches:
            patched = patch.apply(patched)
        with warnings.catch_warnings():  # what Python has to say of code that stays as it is
            warnings.simplefilter("ignore", SyntaxWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            if patched == source:
                return super().get_code(fullname)
            return compile(patched, self.path, "exec", dont_inherit=True)
