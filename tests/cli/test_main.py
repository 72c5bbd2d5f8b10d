"""The command as a whole: versions, help, pipes, interrupts, terminals."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys

import pytest

import thalweg as tf
from thalweg.cli import cache, doctor, export, inspect, main, migrate
from thalweg.cli.report import Report, show

COMMANDS = {"inspect": inspect, "export": export, "migrate": migrate, "cache": cache}
COMMANDS["doctor"] = doctor


def test_python_runs_the_package():
    done = subprocess.run(
        [sys.executable, "-m", "thalweg", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"thalweg {tf.__version__}\n"


def test_without_a_command_there_is_help(thalweg):
    answer = thalweg()
    assert answer.status == 2 and all(name in answer.out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples(name, capsys):
    with pytest.raises(SystemExit) as left:
        main.main([name, "--help"])
    text = capsys.readouterr().out
    assert left.value.code == 0
    assert text.count(f"thalweg {name}") >= 3 and "examples:" in text
    assert max(map(len, text.splitlines())) <= 100


def test_arguments_without_sense_are_a_usage_error(capsys):
    for arguments in (["inspect"], ["no-such"], ["cache", "limit", "much"], ["migrate", "a.py"]):
        with pytest.raises(SystemExit) as left:
            main.main(arguments)
        assert left.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_reader_that_has_seen_enough(files, monkeypatch):
    class Closed(io.StringIO):
        def write(self, _):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    assert main.main(["inspect", str(files / "run")]) == 0


def test_an_interrupt_is_quiet(files, thalweg, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(inspect, "recognise", interrupted)
    assert thalweg("inspect", files / "run") == (130, "", "")


def test_a_mistake_of_ours_is_one_line_too(files, fails, thalweg, monkeypatch):
    def mistaken(_):
        raise KeyError("some\nthing")

    monkeypatch.setattr(inspect, "recognise", mistaken)
    assert "KeyError" in fails(files / "run", "inspect", files / "run")
    monkeypatch.setenv("THALWEG_FULL_TRACEBACK", "1")
    with pytest.raises(ValueError, match="KeyError"):
        thalweg("inspect", files / "run")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_colours_are_for_terminals(monkeypatch):
    report = Report("a", "b", {"c": 1}, {"d": [{"e": 2}]})
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    texts = []
    for stream, setting in ((Terminal(), ""), (Terminal(), "1"), (io.StringIO(), "")):
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setenv("NO_COLOR", setting)
        show(report, as_json=False)
        texts.append(stream.getvalue())
    assert "\x1b[1m" in texts[0]
    assert re.sub(r"\x1b\[\d*m", "", texts[0]) == texts[1] == texts[2]


# The cache


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("THALWEG_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("THALWEG_CACHE_LIMIT", raising=False)
    return tmp_path / "cache"


def filled(folder, count=4, size=1000):
    """Put entries there, and files that are not ours."""
    (folder / "ab").mkdir(parents=True, mode=0o700)
    for number in range(count):
        (folder / "ab" / f"{number:04x}.o").write_bytes(bytes(size))
        os.utime(folder / "ab" / f"{number:04x}.o", (number, number))
    (folder / "ab" / "main.o").touch()
    (folder / "notes.o").touch()
    folder.chmod(0o700)


def test_the_cache_tells_what_it_holds(cache_folder, thalweg):
    assert "not made yet" in thalweg("cache", "info").out
    filled(cache_folder)
    report = json.loads(thalweg("cache", "info", "--json").out)
    assert (report["entries"], report["size"], report["limit"]) == (4, 4000, 4 << 30)
    assert report["permissions"] == "drwx------, owned by you" and report["state"] == "in use"


def test_the_cache_is_cleared_of_entries_alone(cache_folder, thalweg):
    filled(cache_folder)
    assert "removed 4 entries, 4 kB" in thalweg("cache", "clear").out
    assert sorted(p.name for p in cache_folder.rglob("*.o")) == ["main.o", "notes.o"]


def test_a_limit_lasts(cache_folder, thalweg, monkeypatch):
    filled(cache_folder)
    assert "at most 2 kB" in thalweg("cache", "limit", "2kB").out
    left = sorted(p.name for p in cache_folder.rglob("0*.o"))
    assert left == ["0002.o", "0003.o"], "those not used for longest went first"
    assert "at most 2 kB" in thalweg("cache", "limit").out
    (cache_folder / "limit").write_text("nonsense")
    assert "at most 4.29 GB" in thalweg("cache", "limit").out
    monkeypatch.setenv("THALWEG_CACHE_LIMIT", "1000")
    assert "at most 1 kB (THALWEG_CACHE_LIMIT)" in thalweg("cache", "limit").out


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("5", 5), ("1.5k", 1500), ("2 MB", 2_000_000), ("1GiB", 1 << 30)]
)
def test_sizes(text, size):
    assert cache._size(text) == size


def test_a_cache_of_somebody_else_is_told(cache_folder, thalweg):
    filled(cache_folder)
    cache_folder.chmod(0o777)
    assert "can be written by others" in thalweg("cache", "info").out
    assert thalweg("doctor").status == 1


def test_a_cache_that_is_off_is_told(monkeypatch, thalweg):
    monkeypatch.setenv("THALWEG_CACHE", "0")
    assert "off" in thalweg("cache", "info").out


# The doctor


def test_the_doctor_tries_a_kernel(thalweg):
    report = json.loads(thalweg("doctor", "--json").out)
    processor, _, tried = report["parts"]
    assert tried["result"] == "passed" and "matmul" in tried["kernels"]
    assert processor["threads"] >= 1 and "bits" in processor["vectors"]
    assert {row["package"] for row in report["packages"]} >= {"numpy", "llvmlite"}


def test_the_doctor_says_when_kernels_are_wrong(thalweg, monkeypatch):
    monkeypatch.setattr(doctor.np, "tanh", lambda x: x + 1)
    answer = thalweg("doctor")
    assert answer.status == 1 and "failed: other numbers" in answer.out


def test_the_doctor_names_the_extra_that_brings_a_package(monkeypatch, thalweg):
    monkeypatch.setattr(doctor, "_version", lambda name: "")
    monkeypatch.setattr(doctor.metadata, "requires", lambda _: ["pillow; extra == 'image'"])
    assert "pip install 'thalweg[image]'" in thalweg("doctor").out
