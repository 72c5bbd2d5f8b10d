"""`thalweg launch`: programs as all tasks of a cluster, their lines, failures and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from thalweg.cli.live_table import LiveTable, PlainLines, Row, summary
from thalweg.cluster.launch.watch import Rates

PROGRAM = """
import json, os, signal, sys
about = json.loads(os.environ["TF_CONFIG"])
task = about["task"]
print(task["type"], task["index"], *sys.argv[1:])
if task["type"] == "ps":
    print("pid", os.getpid(), flush=True)
    signal.pause()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return file


def test_every_task_runs_and_its_lines_bear_its_name(thalweg, script: Path) -> None:
    answer = thalweg("launch", "--ps", 1, "--workers", 2, script, "--n={index}", "--ps={ps_hosts}")
    assert answer.status == 0, answer
    lines = [line.split() for line in answer.out.splitlines()]
    assert ["worker:1", "|", "worker", "1", "--n=1"] in [line[:5] for line in lines]
    assert ["ps:0", "|", "ps", "0", "--n=0"] in [line[:5] for line in lines]
    assert len({line[5] for line in lines if "--n" in "".join(line)}) == 1  # one cluster for all
    (pid,) = [int(line[3]) for line in lines if line[2] == "pid"]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_flags_of_old(thalweg, script: Path) -> None:
    answer = thalweg("launch", "--ps", 0, "--workers", 1, "--flags", script, "--steps", 3)
    (line,) = answer.out.splitlines()
    assert line.split()[4:8] == ["--steps", "3", "--job_name=worker", "--task_index=0"]


def test_a_failure_ends_all_in_one_line(fails, tmp_path: Path, script: Path) -> None:
    script.write_text(PROGRAM + "\nsys.exit(7 if task['index'] else signal.pause())")
    said = fails(script, "launch", "--ps", 1, "--workers", 2, script)
    assert said.endswith("program.py: worker:1 ended with status 7\n")
    fails("absent.py", "launch", tmp_path / "absent.py")


def test_a_task_that_died_is_started_again(thalweg, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import os, signal, sys\n"
        f"if os.path.exists({str(tmp_path / 'was here')!r}): sys.exit(0)\n"
        f"open({str(tmp_path / 'was here')!r}, 'w').close()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    answer = thalweg("launch", "--ps", 0, "--workers", 1, "--restarts", 1, script)
    assert answer.status == 0
    assert "worker:0 was killed by SIGKILL and is started again" in answer.out


@pytest.mark.parametrize(("ending", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_reach_all_tasks(ending: signal.Signals, status: int, script: Path) -> None:
    command = [sys.executable, "-m", "thalweg", "launch", "--workers", "0", str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        lines = iter(process.stdout.readline, b"")
        pid = next(int(line.split()[3]) for line in lines if b"pid" in line)
        process.send_signal(ending)
        _, err = process.communicate()
    assert (process.returncode, err) == (status, b"")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_counts_must_be_numbers(thalweg, script: Path) -> None:
    with pytest.raises(SystemExit):
        thalweg("launch", "--workers", "-1", script)


ROW = Row("worker:0", "running", 1200, Rates(60.25, 2_000_000.0, 1000.0))


def test_a_row_reads_as_part_of_a_sentence() -> None:
    assert summary(ROW) == "worker:0 60.2 steps/s, 2 MB/s out, 1 kB/s in"
    assert summary(Row("ps:0", "waiting", None, None)) == "ps:0 waiting"
    assert summary(ROW._replace(state="done")) == "worker:0 done"


def test_plain_lines_escape_what_could_steer_a_terminal(capsys) -> None:
    with PlainLines() as lines:
        lines.line("ps:0", "10%\r20%")
        lines.line("ps:0", "\x1b[2J")
    assert capsys.readouterr().out.splitlines() == ["      ps:0 | 20%", "      ps:0 | \\x1b[2J"]


def test_the_live_table_shows_every_task(capsys, monkeypatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    with LiveTable() as table:
        table.line("ps:0", "[bold]hello[/bold]")
        table.table([ROW])
    out = capsys.readouterr().out
    assert "[bold]hello[/bold]" in out
    assert "60.2" in out and "worker:0" in out
