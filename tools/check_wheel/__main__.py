"""Build the package, install it in clean environments and run a user's program in each.

Usage: python -m tools.check_wheel [PYTHON ...], the interpreters to try (else the one that runs
this); those that do not start are left out. The wheel is built from the source distribution, so
both are complete. All is written to a folder that goes away; pip looks for packages where it is
told to by its own configuration.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = Path(__file__).with_name("program.py")
_OLDEST = (3, 11)


def main(pythons: list[str]) -> int:
    """Try the wheel on every interpreter that runs; the exit status."""
    usable = [python for python in pythons or [sys.executable] if _runs(python)]
    if not usable:
        print(f"None of these is a Python that runs here: {' '.join(pythons)}")
        return 1
    with tempfile.TemporaryDirectory(prefix="check-wheel-") as folder:
        wheel = _built(Path(folder))
        _check_contents(wheel)
        _check_page(wheel)
        for number, python in enumerate(usable):
            _try(wheel, python, Path(folder) / f"environment{number}")
    return 0


def _runs(python: str) -> bool:
    """Whether this is a Python that is new enough: a name may stand for no interpreter at all."""
    code = f"import sys, venv; sys.exit(sys.version_info < {_OLDEST})"
    found = shutil.which(python)
    runs = found is not None and _succeeds(found, "-c", code)
    if not runs:
        print(f"{python}: left out, it does not run or is older than {_OLDEST[0]}.{_OLDEST[1]}")
    return runs


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True).returncode == 0


def _built(folder: Path) -> Path:
    """The wheel, made from a source distribution."""
    built = folder / "dist"
    _run(folder, sys.executable, "-m", "build", "--outdir", str(built), str(_ROOT))
    (archive,) = built.glob("*.tar.gz")
    (wheel,) = built.glob("*.whl")
    for made in (archive, wheel):
        print(f"{made.name}: {made.stat().st_size / 1e6:.1f} MB")
    return wheel


def _check_contents(wheel: Path) -> None:
    """Every file of the package is in the wheel, its stubs are, and nothing else."""
    with zipfile.ZipFile(wheel) as opened:
        found = {name for name in opened.namelist() if ".dist-info/" not in name}
    files = (path for path in (_ROOT / "thalweg").rglob("*") if path.is_file())
    wanted = {str(path.relative_to(_ROOT)) for path in files if path.suffix != ".pyc"}
    wanted |= {"thalweg-stubs/__init__.pyi", "thalweg-stubs/nn/__init__.pyi"}
    missing = sorted(wanted - found)
    foreign = sorted(name for name in found if not name.startswith(("thalweg/", "thalweg-stubs/")))
    if missing or foreign:
        sys.exit(f"the wheel lacks {missing} and has {foreign}")


def _check_page(wheel: Path) -> None:
    """A package's page shows the readme where no file is beside it: files are named, not linked."""
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        shown = opened.read(name).decode()
    relative = re.findall(r"\]\((?!https:|#)[^)]*\)", shown)
    missing = [file for file in re.findall(r"`([\w/]+\.md)`", shown) if not (_ROOT / file).exists()]
    if relative or missing or "`docs/names.md`" not in shown:
        sys.exit(f"on a package's page links lead nowhere: {relative}, files are not: {missing}")


def _try(wheel: Path, python: str, folder: Path) -> None:
    """Install the wheel in a new environment, say what came with it, run the program."""
    started = time.monotonic()
    folder.mkdir()
    _run(folder, shutil.which(python) or python, "-m", "venv", "env")
    own = folder / "env" / "bin"
    _run(folder, str(own / "python"), "-m", "pip", "install", "--quiet", str(wheel))
    _run(folder, str(own / "python"), "-m", "pip", "check")
    listed = _run(folder, str(own / "python"), "-m", "pip", "list", "--format=freeze").split()
    version = _run(folder, str(own / "python"), "--version").strip()
    packages = [name for name in listed if name.split("==")[0] not in ("pip", "setuptools")]
    print(f"{version}: {', '.join(packages)}")
    print(_run(folder, str(own / "python"), "-W", "error", str(_PROGRAM)), end="")
    print(_run(folder, str(own / "thalweg"), "inspect", "job").splitlines()[0])
    print(f"{version}: all held, {time.monotonic() - started:.0f} s")


def _run(folder: Path, *command: str) -> str:
    """What a command prints; its errors too, and the end, if it fails."""
    environment = {name: v for name, v in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"THALWEG_CACHE": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if ran.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{ran.stdout}")
    return ran.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
