"""Paths of data files."""

from pathlib import Path

import pytest

from thalweg.platform.files import resource_loader
from thalweg.version import __version__

HERE = Path(__file__).parent


def test_paths_are_relative_to_the_calling_file():
    assert resource_loader.get_data_files_path() == str(HERE)
    assert resource_loader.get_path_to_datafile("data/a.txt") == str(HERE / "data" / "a.txt")


def test_resources_are_relative_to_the_package():
    assert __version__.encode() in resource_loader.load_resource("version.py")
    assert Path(resource_loader.get_root_dir_with_all_resources(), "version.py").exists()
    with pytest.raises(OSError):
        resource_loader.load_resource("no such file")


def test_readahead_returns_the_path():
    assert resource_loader.readahead_file_path("a", readahead="1M") == "a"
