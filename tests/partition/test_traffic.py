"""What crosses devices in a step of a sharded model: the rows that are touched, and no table."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import thalweg as tf
from thalweg.partition.rendezvous import Key, Rendezvous

SERVERS = ["/cpu:1", "/cpu:2", "/cpu:3"]
CONFIG = tf.ConfigProto(device_count={"CPU": 4})
DEPTH = 16
IDS = np.arange(32) * 17 % 300
FLOATS, INDICES = IDS.size * DEPTH * 4, IDS.size * 8


class Traffic(NamedTuple):
    """What was sent in one step."""

    sent: int  # bytes
    routes: Counter[tuple[str, str]]  # messages between two devices, tokens too


@pytest.fixture
def transfers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Key, int]]]:
    """Every transfer of the steps of this test, and its bytes."""
    found: list[tuple[Key, int]] = []
    send = Rendezvous.send

    def counting(self: Rendezvous, key: Key, value: Any) -> None:
        found.append((key, 0 if key.tensor_name.startswith("^") else np.asarray(value).nbytes))
        send(self, key, value)

    monkeypatch.setattr(Rendezvous, "send", counting)
    yield found


def measure(transfers: list[tuple[Key, int]], build: Any, rows: int) -> Traffic:
    """What one training step of a model with tables of so many rows sends."""
    with tf.Graph().as_default(), tf.device("/cpu:0"):
        train = build(rows)
        with tf.Session(config=CONFIG) as session:
            session.run(tf.global_variables_initializer())
            routes = routes_of(transfers, session, train)
    return Traffic(sum(size for _, size in transfers), routes)


def routes_of(
    transfers: list[tuple[Key, int]], session: tf.Session, op: tf.Operation
) -> Counter[tuple[str, str]]:
    """How many messages a step sends between two devices."""
    transfers.clear()
    session.run(op)
    return Counter((key.send_device[-5:], key.recv_device[-5:]) for key, _ in transfers)


def shards(name: str, rows: int, *depth: int) -> list[tf.Variable]:
    result = []
    for number, server in enumerate(SERVERS):
        with tf.device(server):
            shape = [rows // len(SERVERS), *depth]
            result.append(tf.get_variable(f"{name}_{number}", shape))
    return result


def ids() -> tf.Tensor:
    """The ids, from the worker's device: a constant would be copied to the servers."""
    return tf.placeholder_with_default(IDS, [None])


def trained(loss: tf.Tensor, optimizer: Any = tf.train.AdagradOptimizer) -> Any:
    return optimizer(0.1).minimize(tf.reduce_sum(loss))


def looked_up(strategy: str, optimizer: Any) -> Any:
    def build(rows: int) -> Any:
        table = shards("table", rows, DEPTH)
        found = tf.nn.embedding_lookup(table, ids(), strategy)
        return trained(tf.square(found - 1.0), optimizer)

    return build


@pytest.mark.parametrize("strategy", ["mod", "div"])
@pytest.mark.parametrize(
    "optimizer", [tf.train.GradientDescentOptimizer, tf.train.AdagradOptimizer]
)
def test_a_lookup_moves_each_row_once_each_way(transfers: Any, strategy: str, optimizer: Any):
    build = looked_up(strategy, optimizer)
    small, large = (measure(transfers, build, rows) for rows in (300, 30_000))
    assert small.sent == large.sent == 2 * FLOATS + INDICES
    # Indices and gradients there, rows and the end of the update back; no server asks another.
    there = {("CPU:0", f"CPU:{server}"): 2 for server in (1, 2, 3)}
    assert large.routes == {**there, **{(end, start): 2 for start, end in there}}


def combined(rows: int) -> Any:
    places = np.stack([np.arange(IDS.size) // 4, np.arange(IDS.size) % 4], 1)
    sparse = tf.SparseTensor(places, ids(), [IDS.size // 4, 4])
    found = tf.nn.embedding_lookup_sparse(shards("table", rows, DEPTH), sparse, None)
    return trained(tf.square(found - 1.0))


def partitioned_table(name: str, rows: int, *depth: int) -> Any:
    """A partitioned variable with a part on each server."""

    def device(node: tf.Operation) -> str:
        part = node.name.partition("part_")[2][:1]
        return SERVERS[int(part)] if part and node.type == "VariableV2" else "/cpu:0"

    with tf.device(None), tf.device(device):
        cut = tf.fixed_size_partitioner(len(SERVERS))
        return tf.get_variable(name, [rows, *depth], partitioner=cut)


def partitioned(rows: int) -> Any:
    table = partitioned_table("table", rows, DEPTH)
    return trained(tf.square(tf.nn.embedding_lookup(table, ids(), "div") - 1.0))


@pytest.mark.parametrize("build", [combined, partitioned])
def test_lookups_of_other_kinds_send_as_much(transfers: Any, build: Any):
    small, large = (measure(transfers, build, rows) for rows in (300, 30_000))
    assert small.sent == large.sent == 2 * FLOATS + INDICES


def test_pulls_and_pushes_send_rows_and_indices(transfers: Any):
    def build(rows: int) -> Any:
        servers = tf.train.ParameterServer(SERVERS)
        table = servers.table("table", rows, [DEPTH])
        keys = ids()
        return servers.end_step(table.push(keys, 2.0 * table.pull(keys)))

    small, large = (measure(transfers, build, rows) for rows in (300, 30_000))
    assert small.sent == large.sent == 2 * FLOATS + INDICES  # which pull and push share


@pytest.mark.parametrize(("make", "strategy"), [(shards, "mod"), (partitioned_table, "div")])
@pytest.mark.parametrize("loss", [tf.nn.sampled_softmax_loss, tf.nn.nce_loss])
def test_sampled_losses_send_the_true_and_the_sampled_classes(
    transfers: Any, make: Any, strategy: str, loss: Any
):
    batch, samples = 8, 24

    def build(classes: int) -> Any:
        inputs = tf.placeholder_with_default(np.ones([batch, DEPTH], np.float32), [batch, DEPTH])
        weights, biases = make("weights", classes, DEPTH), make("biases", classes)
        labels = tf.placeholder_with_default(np.arange(batch)[:, None] * 7, [batch, 1])
        # The samples are of the first classes: as many rows, whatever the number of classes.
        about = weights, biases, labels, inputs, samples, 300
        return trained(loss(*about, partition_strategy=strategy))

    small, large = (measure(transfers, build, classes) for classes in (300, 30_000))
    rows = batch + samples
    # Weights and biases are looked up by the same indices, which are sent once.
    assert small.sent == large.sent == rows * (2 * (DEPTH + 1) * 4 + 8)


def dense_model() -> tuple[tf.Tensor, Any]:
    """A loss of three variables on the second server, and a step on the first."""
    with tf.device(SERVERS[0]):
        step = tf.train.create_global_step()
    with tf.device(SERVERS[1]):
        variables = [tf.get_variable(f"v{number}", [4]) for number in range(3)]
    return tf.add_n([tf.reduce_sum(tf.square(v)) for v in variables]), step


def test_servers_tell_each_other_once_that_they_are_done(transfers: Any):
    def build(_: int) -> Any:
        return tf.train.GradientDescentOptimizer(0.1).minimize(*dense_model())

    routes = measure(transfers, build, 0).routes
    assert routes == {("CPU:2", "CPU:0"): 3, ("CPU:0", "CPU:2"): 3, ("CPU:2", "CPU:1"): 1}


def test_a_synchronous_step_adds_a_mark_and_a_token(transfers: Any):
    with tf.Graph().as_default(), tf.device("/cpu:0"):
        optimizer = tf.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(0.1), 1)
        train = optimizer.minimize(*dense_model())
        update = optimizer.get_chief_queue_runner().enqueue_ops[0]
        tokens = optimizer.get_init_tokens_op()
        with tf.Session(config=CONFIG) as session:
            session.run(tf.global_variables_initializer())
            session.run([optimizer.chief_init_op, tokens])
            pushing, updating = (routes_of(transfers, session, op) for op in (train, update))
    assert pushing == {
        ("CPU:2", "CPU:0"): 3,
        ("CPU:0", "CPU:2"): 4,  # the gradients, and the step that they are of
        ("CPU:2", "CPU:1"): 1,
        ("CPU:1", "CPU:0"): 1,
    }
    assert updating == {("CPU:2", "CPU:1"): 1}
