"""Paths of data files beside a program or inside this package."""

import sys
from pathlib import Path

from thalweg.public import public

_PACKAGE = Path(__file__).resolve().parent.parent.parent


@public("resource_loader.load_resource")
def load_resource(path: str) -> bytes:
    """The content of a file whose path is relative to the package."""
    return (_PACKAGE / path).read_bytes()


@public("resource_loader.get_root_dir_with_all_resources")
def get_root_dir_with_all_resources() -> str:
    """The folder that resource paths start from."""
    return str(_PACKAGE)


@public("resource_loader.get_data_files_path")
def get_data_files_path() -> str:
    """The folder of the file that calls this.

    Returns:
        A path.

    Example:
        >>> isinstance(tf.resource_loader.get_data_files_path(), str)
        True
    """
    return _folder_of_caller()


@public("resource_loader.get_path_to_datafile")
def get_path_to_datafile(path: str) -> str:
    """`path` below the folder of the file that calls this."""
    return str(Path(_folder_of_caller()) / path)


@public("resource_loader.readahead_file_path")
def readahead_file_path(path: str, readahead: str = "128M") -> str:
    """`path` itself: the operating system reads ahead, whatever `readahead` asks for."""
    del readahead
    return path


def _folder_of_caller() -> str:
    """The folder of the file that called the public function."""
    return str(Path(sys._getframe(2).f_code.co_filename).parent)  # pyright: ignore[reportPrivateUsage] - the one way to a frame that builds no traceback
