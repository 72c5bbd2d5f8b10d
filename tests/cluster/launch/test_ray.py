"""Tasks as actors of a real Ray on this machine: trained on, killed, more of them.

`make test-ray` installs Ray and runs these; they are skipped where it is not installed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import thalweg as tf

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed: make test-ray", allow_module_level=True)

pytestmark = [
    pytest.mark.filterwarnings("default"),  # Ray warns about itself
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def cluster():
    with tf.cluster.ray({"ps": 1, "worker": 2}, address="local") as cluster:
        yield cluster


def count_to(server, limit):
    """Count steps in a variable of the parameter server, up to a limit."""
    about = server.server_def
    worker = f"/job:worker/task:{about.task_index}"
    setter = tf.train.replica_device_setter(worker_device=worker, cluster=about.cluster)
    with tf.device(setter):
        step = tf.train.get_or_create_global_step()
        count = tf.assign_add(step, 1)
    is_chief = about.task_index == 0
    hooks = [tf.train.StopAtStepHook(last_step=limit)]
    with tf.train.MonitoredTrainingSession(server.target, is_chief, hooks=hooks) as session:
        while not session.should_stop():
            session.run(count)
    return about.task_index


def processes(cluster):
    """The processes of the workers."""
    return cluster.run(lambda server: os.getpid())


def test_workers_train_on_variables_of_the_parameter_server(cluster):
    assert cluster.spec.jobs == ["ps", "worker"]
    assert cluster.spec.task_address("ps", 0).startswith("127.0.0.1:")
    assert cluster.run(count_to, 50) == [0, 1]


def test_a_worker_that_was_killed_comes_back_at_its_address(cluster):
    addresses, (chief, victim) = cluster.spec, processes(cluster)
    os.kill(victim, signal.SIGKILL)
    again = processes(cluster)
    assert again[0] == chief and again[1] != victim
    assert cluster.spec == addresses
    assert cluster.run(count_to, 100) == [0, 1]


def test_a_parameter_server_that_was_killed_comes_back_empty(cluster):
    (victim,) = cluster.run(lambda server: os.getpid(), job="ps")
    os.kill(victim, signal.SIGKILL)
    assert cluster.run(count_to, 50) == [0, 1]  # the chief initialises its variables again


def test_a_function_is_called_again_where_its_worker_died(cluster, tmp_path):
    mark = str(tmp_path / "mark")

    def dies_once(server):
        if server.server_def.task_index == 1 and not os.path.exists(mark):
            open(mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return server.server_def.task_index

    assert cluster.run(dies_once) == [0, 1]


def test_what_a_function_raises_is_raised(cluster):
    def fails(server):
        raise ZeroDivisionError("of the user")

    with pytest.raises(ZeroDivisionError, match="of the user"):
        cluster.run(fails)


def test_a_job_grows(cluster):
    cluster.scale("worker", 4)
    assert cluster.spec.num_tasks("worker") == 4
    assert cluster.run(count_to, 200) == [0, 1, 2, 3]
    with tf.Graph().as_default(), tf.Session(cluster.target("ps")) as session:
        assert len(session.list_devices()) == 5
    with pytest.raises(ValueError, match="not shrink"):
        cluster.scale("worker", 1)
    with pytest.raises(ValueError, match="no task worker:9"):
        cluster.target("worker", 9)


def test_ray_knows_the_placement(cluster):
    from ray.util import placement_group_table

    states = [group["state"] for group in placement_group_table().values()]
    bundles = [group["bundles"] for group in placement_group_table().values()]
    assert set(states) == {"CREATED"}
    assert sum(map(len, bundles)) == 1 + cluster.spec.num_tasks("worker")
    assert "worker:3" in repr(cluster)
    status = on_this_ray("-m", "ray.scripts.scripts", "status")
    print(status.stdout)
    assert "reserved in placement groups" in status.stdout, status.stderr


def on_this_ray(*command):
    """A command in a process of its own, on the Ray that runs already."""
    import ray

    environment = os.environ | {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    command = [sys.executable, *map(str, command)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def test_the_example(cluster):
    done = on_this_ray(EXAMPLES / "on_ray.py", "--steps", 100)
    assert done.returncode == 0, done.stderr
    losses = re.findall(r"worker \d: loss ([\d.]+)", done.stdout)
    assert len(losses) == 2 and all(float(loss) < 0.5 for loss in losses)


LAUNCH = ("-m", "thalweg", "launch", "--ray", "auto")


def test_a_script_is_launched_on_ray(cluster):
    script = EXAMPLES / "distributed.py"
    done = on_this_ray(*LAUNCH, "--workers", 2, script, "--sync", "--steps", 100)
    assert done.returncode == 0, done.stdout + done.stderr
    workers = re.findall(r"worker:(\d) \| step \d+: loss", done.stdout)
    assert sorted(workers) == ["0", "1"]


def test_a_script_that_fails_on_ray_is_started_again_and_named(cluster, tmp_path):
    script = tmp_path / "program.py"
    script.write_text("import sys; print('here'); sys.exit(3)")
    done = on_this_ray(*LAUNCH, "--ps", 0, "--restarts", 1, script)
    assert done.returncode == 1
    assert done.stdout.count("worker:0 | here") == 2
    assert done.stderr.splitlines()[-1].endswith("program.py: worker:0 ended with status 3")
