"""What the page about clusters has users start: a manifest for Kubernetes, a script for Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

ROOT = Path(__file__).resolve().parents[3]
RECIPES = ROOT / "examples" / "cluster"
SCHEMA = json.loads((Path(__file__).parent / "rayjob.schema.json").read_text())


@pytest.fixture
def manifest():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: make install")
    return yaml.safe_load((RECIPES / "rayjob.yaml").read_text())


def test_the_manifest_is_what_kuberay_takes(manifest) -> None:
    jsonschema.validate(manifest, SCHEMA)
    manifest["spec"]["rayClusterSpec"]["workerGroups"] = []
    with pytest.raises(jsonschema.ValidationError, match="workerGroups"):
        jsonschema.validate(manifest, SCHEMA)


def test_the_manifest_has_room_for_the_tasks_that_its_program_asks_for(manifest) -> None:
    *_, ps_flag, ps, worker_flag, workers = manifest["spec"]["entrypoint"].split()
    assert (ps_flag, worker_flag) == ("--ps", "--workers")
    (group,) = manifest["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    cpus = int(container["resources"]["requests"]["cpu"]) * group["replicas"]
    assert cpus >= int(ps) + int(workers)


PROGRAM = """
import os, signal, sys
words = [os.environ["TF_CONFIG"], str(len(os.environ["THALWEG_CLUSTER_KEY"])), *sys.argv[1:]]
os.write(1, (" ".join(words) + "\\n").encode())  # at once: tasks share the pipe
if '"ps", "index"' in os.environ["TF_CONFIG"]:
    signal.pause()
sys.exit("fail" in sys.argv)
"""


@pytest.fixture
def slurm(tmp_path: Path):
    """Runs the script for Slurm with stand-ins for Slurm's own commands."""
    programs = {
        "srun": 'while [[ $1 == --* ]]; do shift; done; exec "$@"',
        "scontrol": "echo node-a; echo node-b",
        "python": f'exec {sys.executable} "$@"',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "program.py").write_text(PROGRAM)

    def run(*arguments: str) -> subprocess.CompletedProcess:
        path = f"{tmp_path}:{os.environ['PATH']}"
        settings = {"PATH": path, "SLURM_JOB_NODELIST": "node-[a-b]", "PYTHONPATH": str(ROOT)}
        command = ["bash", str(RECIPES / "slurm.sh"), str(tmp_path / "program.py"), *arguments]
        environment = os.environ | settings
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    return run


def test_slurm_starts_all_tasks_and_ends_with_the_workers(slurm) -> None:
    done = slurm("--sync")
    assert done.returncode == 0, done.stderr
    lines = [line.rsplit(" ", 2) for line in done.stdout.splitlines()]
    assert {(key, argument) for _, key, argument in lines} == {("40", "--sync")}
    configs = [json.loads(config) for config, _, _ in lines]
    assert all(each["cluster"] == configs[0]["cluster"] for each in configs)
    assert configs[0]["cluster"] == {
        "ps": ["node-a:22220"],
        "worker": ["node-b:22221", "node-a:22222", "node-b:22223"],
    }
    workers = {each["task"]["index"] for each in configs if each["task"]["type"] == "worker"}
    assert workers == {0, 1, 2}


def test_slurm_ends_with_the_first_failure(slurm) -> None:
    assert slurm("fail").returncode == 1
