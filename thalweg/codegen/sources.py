"""The code that makes code, as a digest: what other versions of it made does not count."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path

from thalweg.platform.caches import memoized

_PACKAGE = Path(__file__).parent.parent


def own_digest(folders: Sequence[str]) -> str:
    """A digest of the Python files in some folders of this package, each read once."""
    return _together(map(_own_folder, folders))


def code_digest(package: Path, folders: Sequence[str]) -> str:
    """A digest of the Python files in some folders of a package."""
    return _together(_digest(package, folder) for folder in folders)


@memoized(64)
def _own_folder(folder: str) -> bytes:
    return _digest(_PACKAGE, folder)


def _digest(package: Path, folder: str) -> bytes:
    parts: list[bytes] = []
    for path in _python_files(os.fspath(package / folder)):
        with open(path, "rb", buffering=0) as file:
            content = file.read()
        name = path[len(os.fspath(package)) + 1 :]
        parts += f"{name} {len(content)}\n".encode(), content
    return sha256(b"".join(parts)).digest()  # in one go: by files takes longer


def _python_files(folder: str) -> list[str]:
    """The Python files of a folder and of those in it, in one order."""
    found: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                found.append(entry.path)
            elif entry.name != "__pycache__" and entry.is_dir():
                found += _python_files(entry.path)
    return sorted(found)


def _together(digests: Iterable[bytes]) -> str:
    return sha256(b"".join(digests)).hexdigest()
