"""Cluster specs: the same tasks as dicts, messages and specs; who a server is."""

import pytest

import thalweg as tf
from thalweg.cluster.spec import server_def

JOBS = {
    "ps": ["ps0:2222", "ps1:2222"],
    "worker": ["worker0:2222", "worker1:2222", "worker2:2222"],
    "sparse": {0: "sparse0:2222", 3: "sparse3:2222"},
}


@pytest.fixture(scope="module")
def cluster():
    return tf.train.ClusterSpec(JOBS)


def test_every_form_gives_the_same_cluster(cluster):
    assert cluster.as_dict() == JOBS
    definition = cluster.as_cluster_def()
    assert [job.name for job in definition.job] == ["ps", "sparse", "worker"]
    assert dict(definition.job[1].tasks) == JOBS["sparse"]
    for form in (cluster, definition, {**JOBS, "ps": {1: b"ps1:2222", 0: b"ps0:2222"}}):
        assert tf.train.ClusterSpec(form) == cluster
    assert definition == tf.train.ClusterSpec(definition).as_cluster_def()


def test_clusters_differ_by_jobs_tasks_and_order():
    a = tf.train.ClusterSpec({"job": ["a:1", "b:1"]})
    assert a != tf.train.ClusterSpec({"job": ["b:1", "a:1"]})
    assert a != tf.train.ClusterSpec({"other": ["a:1", "b:1"]})
    assert a == {"job": {0: "a:1", 1: "b:1"}}
    assert a
    assert not tf.train.ClusterSpec({})


def test_tasks_of_a_job(cluster):
    assert cluster.jobs == ["ps", "worker", "sparse"]
    assert [cluster.num_tasks(job) for job in cluster.jobs] == [2, 3, 2]
    assert cluster.task_indices("sparse") == [0, 3]
    assert cluster.job_tasks("sparse") == ["sparse0:2222", None, None, "sparse3:2222"]
    assert cluster.task_address("ps", 1) == "ps1:2222"
    assert tf.train.ClusterSpec({"none": []}).as_dict() == {"none": []}


def test_a_spec_prints_as_what_makes_it():
    assert repr(tf.train.ClusterSpec({"b": ["b:1"], "a": ["a:1"]})) == (
        "ClusterSpec({'a': ['a:1'], 'b': ['b:1']})"
    )


def test_unknown_jobs_and_tasks(cluster):
    for ask in (cluster.num_tasks, cluster.task_indices, cluster.job_tasks):
        with pytest.raises(ValueError, match="No such job in cluster: 'unknown'"):
            ask("unknown")
    with pytest.raises(ValueError, match="No task with index 2 in job 'sparse'"):
        cluster.task_address("sparse", 2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["a:1"], "`cluster` must be a dictionary"),
        ({"job": "a:1"}, "tasks for job 'job' must be a list"),
        ({"job": [1]}, "Task address 1"),
        ({1: ["a:1"]}, "Job name 1"),
    ],
)
def test_what_is_no_cluster(wrong, message):
    with pytest.raises(TypeError, match=message):
        tf.train.ClusterSpec(wrong)


def test_the_only_task_need_not_be_named():
    made = server_def({"local": {37: "localhost:0"}})
    assert (made.job_name, made.task_index) == ("local", 37)
    assert made.protocol == "thalweg"


def test_what_is_given_comes_before_what_is_told(cluster):
    config = tf.ConfigProto(allow_soft_placement=True)
    first = server_def(cluster, "worker", 2, "grpc")
    made = server_def(first, task_index=1, config=config)
    assert (made.job_name, made.task_index, made.protocol) == ("worker", 1, "grpc")
    assert made.default_session_config.allow_soft_placement
    assert first.task_index == 2  # what it was made from is as it was
    assert tf.train.ClusterSpec(made.cluster) == cluster


def test_a_server_must_be_told_apart(cluster):
    with pytest.raises(ValueError, match="explicit `job_name`"):
        server_def(cluster)
    with pytest.raises(ValueError, match="explicit `task_index`"):
        server_def(cluster, "ps")
    with pytest.raises(TypeError, match="Could not convert"):
        server_def([])
