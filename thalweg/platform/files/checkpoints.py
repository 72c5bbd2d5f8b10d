"""Checkpoints of any format: our own, single safetensors files, TensorFlow's."""

from __future__ import annotations

import glob
import os

from thalweg.platform.files.checkpoint_files import index_path, open_files
from thalweg.platform.files.tensor_slices import Checkpoint
from thalweg.platform.files.tf_bundle import is_bundle, open_bundle
from thalweg.platform.files.tf_tables import open_tables


def open_checkpoint(prefix: str) -> Checkpoint:
    """The checkpoint of a prefix, or of files without an index whose names match a pattern."""
    path = index_path(prefix)
    if os.path.isfile(path):
        return open_bundle(prefix) if is_bundle(path) else open_files(prefix)
    tables = sorted(path for path in glob.glob(prefix) if os.path.isfile(path) and is_bundle(path))
    return open_tables(prefix, tables) if tables else open_files(prefix)
