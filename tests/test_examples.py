"""The examples run as they are and print what their comments promise."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# These draw bars (and pictures), and have tests of their own.
SLOW = {"digits.py", "reverse_strings.py", "beam_search.py", "language_model.py"}
RAY = {"on_ray.py"}  # tests/cluster/launch/test_ray.py runs it
EXAMPLES = sorted(p.name for p in (ROOT / "examples").glob("*.py") if p.name not in SLOW | RAY)


def output_of(name: str, folder: Path) -> str:
    """What an example prints, run in `folder` as a process of its own, any warning an error."""
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / name)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def promised(source: str) -> Iterator[str]:
    """The comments behind calls of print: what the call prints."""
    for line in source.splitlines():
        found = re.search(r"\bprint\(.*\)\s+# (.+)$", line)
        if found:
            yield found[1]


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str, tmp_path: Path) -> None:
    printed = " ".join(output_of(name, tmp_path).split())
    assert printed
    for text in promised((ROOT / "examples" / name).read_text()):
        assert " ".join(text.split()) in printed


def test_softmax_regression_learns(tmp_path: Path) -> None:
    accuracy = re.search(r"accuracy ([\d.]+)%", output_of("softmax_regression.py", tmp_path))
    assert accuracy and float(accuracy[1]) > 95


def test_the_demo_learns(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "digits.py"), "--epochs", "4"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    accuracy = re.search(r"test accuracy ([\d.]+)%", done.stdout)
    assert accuracy and float(accuracy[1]) > 90
    assert (tmp_path / "digits_loss.png").stat().st_size > 0


@pytest.mark.parametrize("name", ["reverse_strings.py", "beam_search.py"])
def test_strings_are_turned_around(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / name), "--steps", "60"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "60/60" in done.stderr
    rates = [float(rate) for rate in re.findall(r"([\d.]+)%", done.stdout.splitlines()[3])]
    assert rates and min(rates) > 10


def test_workers_train_together(tmp_path: Path) -> None:
    script = str(ROOT / "examples" / "distributed.py")
    command = [sys.executable, "-m", "thalweg", "launch", "--workers", "2", script]
    command += ["--sync", "--steps", "150"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    losses = re.findall(r"worker:(\d) \| step \d+: loss ([\d.]+)", done.stdout)
    assert sorted(worker for worker, _ in losses) == ["0", "1"]
    assert all(float(loss) < 0.1 for _, loss in losses)


@pytest.mark.parametrize("softmax", ["sampled", "full"])
def test_a_language_model_is_trained_on_a_cluster(softmax: str, tmp_path: Path) -> None:
    script = str(ROOT / "examples" / "language_model.py")
    command = [sys.executable, "-m", "thalweg", "launch", "--ps", "2", "--workers", "2", script]
    command += ["--softmax", softmax, "--vocabulary", "320", "--steps", "150", "--test-every", "70"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    known = re.search(r"by chance ([\d.]+), by frequencies ([\d.]+), by topic", done.stdout)
    first = re.search(r"step \d+: loss ([\d.]+)", done.stdout)  # others may be ahead by then
    last = re.search(r"in the end: loss ([\d.]+)", done.stdout)
    assert known and first and last
    assert float(first[1]) <= float(known[1]) + 0.1
    assert float(last[1]) < float(known[1]) - 0.3
