"""What a program is told of the task that it is."""

from __future__ import annotations

import json

from thalweg.cluster.launch.task import FLAGS, Task, environment, expanded
from thalweg.cluster.spec import ClusterSpec

CLUSTER = ClusterSpec({"ps": ["a:1"], "worker": ["b:2", "c:3"]})


def test_tf_config_is_as_in_tensorflow():
    config = json.loads(environment(CLUSTER, Task("worker", 1))["TF_CONFIG"])
    assert config == {
        "cluster": {"ps": ["a:1"], "worker": ["b:2", "c:3"]},
        "task": {"type": "worker", "index": 1},
    }


def test_arguments_are_filled_in():
    words = expanded([*FLAGS, "--other={x}"], CLUSTER, Task("worker", 1))
    assert words == [
        "--job_name=worker",
        "--task_index=1",
        "--ps_hosts=a:1",
        "--worker_hosts=b:2,c:3",
        "--other={x}",
    ]
