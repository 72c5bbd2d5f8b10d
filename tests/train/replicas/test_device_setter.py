"""Where variables go: the device setter's rules, and the strategies that choose a server."""

import collections

import pytest

import thalweg as tf
from thalweg.train.replicas.ps_strategies import RoundRobinStrategy


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def devices(setter):
    with tf.device(setter):
        variables = [tf.Variable(1.0), tf.Variable(1.0), tf.Variable(1.0)]
        total = tf.add_n([v.value() for v in variables])
    return [v.device for v in variables], total.device


CLUSTER = {"ps": ["a:1", "b:1"], "worker": ["c:1"]}


def test_variables_go_round_the_servers():
    on_servers, total = devices(tf.train.replica_device_setter(cluster=CLUSTER))
    assert on_servers == ["/job:ps/task:0", "/job:ps/task:1", "/job:ps/task:0"]
    assert total == "/job:worker"
    assert devices(tf.train.replica_device_setter(ps_tasks=1))[0] == ["/job:ps/task:0"] * 3


def test_no_servers_no_setter():
    assert tf.train.replica_device_setter() is None
    assert tf.train.replica_device_setter(cluster={"worker": ["c:1"]}) is None


def test_a_strategy_may_choose():
    setter = tf.train.replica_device_setter(cluster=CLUSTER, ps_strategy=lambda node: 1)
    assert devices(setter)[0] == ["/job:ps/task:1"] * 3
    with pytest.raises(TypeError, match="callable"):
        tf.train.replica_device_setter(cluster=CLUSTER, ps_strategy=3)


def test_devices_merge_with_what_the_program_asked_for():
    setter = tf.train.replica_device_setter(ps_tasks=1, worker_device="/job:worker/task:3")
    with tf.device(setter), tf.device("/cpu:0"):
        w = tf.Variable(1.0)
        x = tf.constant(1.0)
    assert w.device == "/job:ps/task:0/device:CPU:0"
    assert x.device == "/job:worker/task:3/device:CPU:0"
    plain = tf.train.replica_device_setter(ps_tasks=1, merge_devices=False)
    with tf.device(plain), tf.device("/cpu:0"):
        assert tf.Variable(1.0).device == "/device:CPU:0"


@pytest.mark.parametrize("form", ["spec", "message", "dict"])
def test_servers_are_counted_in_any_cluster(form):
    spec = tf.train.ClusterSpec({"moon": ["a:1", "b:1"], "sun": ["c:1"]})
    cluster = {"spec": spec, "message": spec.as_cluster_def(), "dict": spec.as_dict()}[form]
    setter = tf.train.replica_device_setter(
        ps_device="/job:moon/cpu:0", worker_device="/job:sun", cluster=cluster
    )
    on_servers, total = devices(setter)
    assert on_servers == [f"/job:moon/task:{task}/device:CPU:0" for task in (0, 1, 0)]
    assert total == "/job:sun"


def test_what_is_no_cluster():
    with pytest.raises(TypeError, match="`cluster` must be a dictionary"):
        tf.train.replica_device_setter(cluster=["a:1"])


def test_initializers_are_where_their_variables_are():
    with tf.device(tf.train.replica_device_setter(cluster=CLUSTER)):
        v, w = tf.Variable([1, 2]), tf.Variable([2, 1], use_resource=True)
    assert (v.initializer.device, w.initializer.device) == ("/job:ps/task:0", "/job:ps/task:1")


def test_a_variable_of_another_job_stays_there():
    with tf.device(tf.train.replica_device_setter(cluster=CLUSTER)):
        with tf.device("/job:worker/task:0"):
            local = tf.Variable(1.0)
        with tf.device("/job:ps"):
            first = tf.Variable(1.0)
        with tf.device("/task:7"):
            seventh = tf.Variable(1.0)
    assert local.device == "/job:worker/task:0"  # and takes no server's turn
    assert first.device == "/job:ps/task:0"
    assert seventh.device == "/job:ps/task:7"


def test_an_empty_job_leaves_the_task_open():
    with tf.device(tf.train.replica_device_setter(ps_tasks=2, ps_device="/cpu:1")):
        assert tf.Variable(1.0).device == "/device:CPU:1"
    with tf.device(tf.train.replica_device_setter(ps_tasks=2, ps_device="", worker_device="")):
        assert tf.Variable(1.0).device == ""


def test_tables_are_state_too():
    with tf.device(tf.train.replica_device_setter(cluster=CLUSTER)):
        table = tf.contrib.lookup.MutableHashTable(tf.string, tf.int64, -1)
    assert table.resource_handle.device == "/job:ps/task:0"


def test_other_ops_may_go_to_servers():
    setter = tf.train.replica_device_setter(cluster=CLUSTER, ps_ops=["Const"])
    with tf.device(setter):
        assert tf.constant(1.0).device == "/job:ps/task:0"
        assert tf.placeholder(tf.float32).device == "/job:worker"


# Strategies


def placed(strategy, *shapes):
    """The servers of variables of these shapes."""
    with tf.device(tf.train.replica_device_setter(cluster=CLUSTER, ps_strategy=strategy)):
        made = [tf.get_variable(f"v{i}", shape) for i, shape in enumerate(shapes)]
    return [int(v.device[-1]) for v in made]


SHAPES = [2, 2], [2, 1], [2, 2], [1, 3]


def test_equal_loads_go_round():
    greedy = tf.contrib.training.GreedyLoadBalancingStrategy(2, lambda node: 1)
    assert placed(greedy, *SHAPES) == [0, 1, 0, 1]


def test_the_least_bytes_come_next():
    by_bytes = tf.contrib.training.GreedyLoadBalancingStrategy(
        2, tf.contrib.training.byte_size_load_fn
    )
    assert placed(by_bytes, *SHAPES, []) == [0, 1, 1, 0, 1]


def test_bytes_of_unknown_shapes_and_many_outputs():
    with pytest.raises(ValueError, match="not fully defined"):
        tf.contrib.training.byte_size_load_fn(tf.placeholder(tf.float32, [None]).op)
    with pytest.raises(ValueError, match="single output"):
        tf.contrib.training.byte_size_load_fn(tf.split([1.0, 2.0], 2)[0].op)


@pytest.mark.parametrize(
    "make", [tf.contrib.training.RandomStrategy, tf.train.ConsistentHashStrategy]
)
def test_names_decide_whatever_the_order(make, graph):
    names = [f"layer{i}/weights" for i in range(300)]
    nodes = [tf.no_op(name=name) for name in names]
    there = [make(3)(node) for node in nodes]
    again = make(3)
    assert [again(node) for node in reversed(nodes)] == there[::-1]
    assert min(collections.Counter(there).values()) > 60


def test_another_seed_is_another_choice():
    nodes = [tf.no_op(name=f"v{i}") for i in range(50)]
    first, second = (tf.contrib.training.RandomStrategy(2, seed) for seed in (0, 1))
    assert [first(node) for node in nodes] != [second(node) for node in nodes]
    with pytest.raises(ValueError, match="at least one"):
        tf.contrib.training.RandomStrategy(0)


def test_round_robin_starts_over():
    strategy = RoundRobinStrategy(2)
    assert [strategy(None) for _ in range(3)] == [0, 1, 0]
