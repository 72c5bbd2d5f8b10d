"""Stubs in a folder laid out as an installed package: what type checkers and editors look at."""

from __future__ import annotations

import fcntl
import json
import os
import sysconfig
from pathlib import Path

import pytest

import thalweg
from tools.stubs.write import write

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's project and the environment beside it, made once for all worker processes."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "editor"
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "pyrightconfig.json").exists():
            _make(folder)
    return folder


def _make(folder: Path) -> None:
    packages = site_packages(folder)
    packages.mkdir(parents=True)
    write(packages / "thalweg-stubs")
    (packages / "thalweg").symlink_to(Path(thalweg.__file__).parent)
    (packages / "others.pth").write_text(sysconfig.get_paths()["purelib"])
    for program in PROGRAMS.glob("*.py"):
        (folder / program.name).write_text(program.read_text())
    config = {"typeCheckingMode": "standard", "venvPath": ".", "venv": "environment"}
    (folder / "pyrightconfig.json").write_text(json.dumps(config))


def site_packages(project: Path) -> Path:
    """Where packages are installed in the environment of a project."""
    return project / "environment/lib/python3.11/site-packages"
