"""Remote files: `s3://…`, `gs://…`, `memory://…`, through the package fsspec.

A path with a scheme belongs to the file system that fsspec has for the scheme; all other paths are
local. Errors of file systems are OSErrors, like those of the operating system.
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
    """Whether a path is on a remote file system."""
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
    except ValueError as error:  # an unknown scheme
        raise OSError(f"{error}") from error


def open_remote(path: Any, mode: str) -> IO[bytes]:
    """A binary file; for writing, its folder is created."""
    system, name = file_system(path)
    if "r" not in mode:
        system.makedirs(system._parent(name), exist_ok=True)
    return system.open(name, mode)


def exists(path: Any) -> bool:
    """Whether a file or folder exists."""
    system, name = file_system(path)
    return bool(system.exists(name))


def is_folder(path: Any) -> bool:
    """Whether a folder exists."""
    system, name = file_system(path)
    return bool(system.isdir(name))


def matching(pattern: Any) -> list[str]:
    """The paths that match a pattern, with the scheme."""
    system, name = file_system(pattern)
    return [system.unstrip_protocol(match) for match in system.glob(name)]


def names_in(path: Any) -> list[str]:
    """The names in a folder."""
    system, name = file_system(path)
    return sorted(os.path.basename(entry.rstrip("/")) for entry in system.ls(name, detail=False))


def make_folders(path: Any) -> None:
    """Create a folder and its parents."""
    system, name = file_system(path)
    system.makedirs(name, exist_ok=True)


def remove(path: Any, recursive: bool = False) -> None:
    """Delete a file, or a folder with its content."""
    system, name = file_system(path)
    if not system.exists(name):
        raise FileNotFoundError(2, "No such file or directory", os.fsdecode(path))
    system.rm(name, recursive=recursive)


def copy(source: Any, target: Any) -> None:
    """Copy a file between any two file systems."""
    with _open_any(source, "rb") as reader, _open_any(target, "wb") as writer:
        while block := reader.read(_BLOCK):
            writer.write(block)


def _open_any(path: Any, mode: str) -> IO[bytes]:
    return open_remote(path, mode) if is_remote(path) else open(path, mode)


def statistics(path: Any) -> tuple[int, int, bool]:
    """The size, the modification time in nanoseconds (0 if unknown), and whether it is a folder."""
    system, name = file_system(path)
    info = system.info(name)
    changed: Any = info.get("mtime") or info.get("LastModified") or info.get("created") or 0
    seconds: float = changed.timestamp() if hasattr(changed, "timestamp") else float(changed)
    return int(info.get("size") or 0), int(seconds * 1e9), info.get("type") == "directory"


def walk(path: Any) -> Iterator[tuple[str, list[str], list[str]]]:
    """A folder and each folder below it, with the names in it."""
    system, name = file_system(path)
    for folder, folders, files in system.walk(name):
        yield system.unstrip_protocol(folder), sorted(folders), sorted(files)
