"""Checkpoints on other file systems: written here and copied there, copied here and read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager

from thalweg.platform.files import gfile, remote


def save_remotely(save_path: str, save: Callable[[str], str | None]) -> str | None:
    """Have `save` write files of a local prefix, and copy them to where a remote one says."""
    folder, _, name = save_path.rpartition("/")
    with tempfile.TemporaryDirectory() as beside:
        prefix = save(os.path.join(beside, name))
        gfile.MakeDirs(folder)
        # The index comes last: it says that there is a checkpoint.
        for written in sorted(os.listdir(beside), key=lambda each: each.endswith(".index")):
            gfile.Copy(os.path.join(beside, written), f"{folder}/{written}", overwrite=True)
    return None if prefix is None else f"{folder}/{os.path.basename(prefix)}"


@contextmanager
def local_copy(prefix: str) -> Generator[str]:
    """A prefix whose files are on this machine: itself, or that of a copy while the block lasts."""
    if not remote.is_remote(prefix):
        yield prefix
        return
    folder, _, name = prefix.rpartition("/")
    with tempfile.TemporaryDirectory() as beside:
        if gfile.Exists(folder):
            for found in gfile.ListDirectory(folder):
                if found.startswith(f"{name}."):
                    gfile.Copy(f"{folder}/{found}", os.path.join(beside, found))
        yield os.path.join(beside, name)
