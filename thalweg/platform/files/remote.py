"""Files that are not on this machine: `s3://…`, `gs://…`, `memory://…`, through the package fsspec.

A path with a scheme belongs to the file system that fsspec has for the scheme; all other paths are
local. What a file system refuses is an OSError, as of the operating system.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator
from typing import IO, Any

_BLOCK = 1 << 22  # bytes that are copied at a time
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def is_remote(path: Any) -> bool:
    """Whether a path names another file system than this machine's."""
    text = os.fsdecode(path)
    return _SCHEME.match(text) is not None and not text.startswith("file://")


def file_system(path: Any) -> tuple[Any, str]:
    """The file system of a path, and the path there."""
    try:
        core: Any = importlib.import_module("fsspec.core")
    except ImportError as error:
        raise ImportError(
            f"{os.fsdecode(path)} needs the package fsspec: pip install 'thalweg[fsspec]'"
        ) from error
    try:
        return core.url_to_fs(os.fsdecode(path))
    except ValueError as error:  # a scheme that nobody knows
        raise OSError(f"{error}") from error


def open_remote(path: Any, mode: str) -> IO[bytes]:
    """A file for bytes; the folders above it are made if it is written."""
    system, name = file_system(path)
    if "r" not in mode:
        system.makedirs(system._parent(name), exist_ok=True)
    return system.open(name, mode)


def exists(path: Any) -> bool:
    """Whether there is a file or folder."""
    system, name = file_system(path)
    return bool(system.exists(name))


def is_folder(path: Any) -> bool:
    """Whether there is a folder."""
    system, name = file_system(path)
    return bool(system.isdir(name))


def matching(pattern: Any) -> list[str]:
    """The paths that match a pattern, with the scheme."""
    system, name = file_system(pattern)
    return [system.unstrip_protocol(found) for found in system.glob(name)]


def names_in(path: Any) -> list[str]:
    """The names in a folder."""
    system, name = file_system(path)
    return sorted(os.path.basename(found.rstrip("/")) for found in system.ls(name, detail=False))


def make_folders(path: Any) -> None:
    """Make a folder and those above it."""
    system, name = file_system(path)
    system.makedirs(name, exist_ok=True)


def remove(path: Any, recursive: bool = False) -> None:
    """Delete a file, or a folder with all in it."""
    system, name = file_system(path)
    if not system.exists(name):
        raise FileNotFoundError(2, "No such file or directory", os.fsdecode(path))
    system.rm(name, recursive=recursive)


def copy(source: Any, target: Any) -> None:
    """Copy a file, from and to any file system."""
    with _anywhere(source, "rb") as reading, _anywhere(target, "wb") as writing:
        while block := reading.read(_BLOCK):
            writing.write(block)


def _anywhere(path: Any, mode: str) -> IO[bytes]:
    return open_remote(path, mode) if is_remote(path) else open(path, mode)


def statistics(path: Any) -> tuple[int, int, bool]:
    """Size, time of the last change in nanoseconds (0 if unknown), and whether it is a folder."""
    system, name = file_system(path)
    found = system.info(name)
    changed: Any = found.get("mtime") or found.get("LastModified") or found.get("created") or 0
    seconds: float = changed.timestamp() if hasattr(changed, "timestamp") else float(changed)
    return int(found.get("size") or 0), int(seconds * 1e9), found.get("type") == "directory"


def walk(path: Any) -> Iterator[tuple[str, list[str], list[str]]]:
    """A folder and each below it, with the names in it."""
    system, name = file_system(path)
    for folder, folders, files in system.walk(name):
        yield system.unstrip_protocol(folder), sorted(folders), sorted(files)
