"""Pipelines in GraphDefs: their functions are exported to the library and imported again."""

import subprocess
import sys

import numpy as np
import pytest

import thalweg as tf


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def elements(dataset):
    """The elements of a dataset, before and after its graph is exported and imported."""
    iterator = dataset.make_initializable_iterator()
    following = tf.tuple(tf.contrib.framework.nest.flatten(iterator.get_next()))
    names = [tensor.name for tensor in following]
    start = tf.group(tf.global_variables_initializer(), name="start")
    definition = tf.get_default_graph().as_graph_def().SerializeToString()
    with tf.Graph().as_default():
        tf.import_graph_def(tf.GraphDef.FromString(definition), name="")
        again = all_of([start.name, iterator.initializer.name], names)
    return all_of([start, iterator.initializer], following), again


def all_of(initializers, fetches):
    result = []
    with tf.Session() as session:
        for initializer in initializers:
            session.run(initializer)
        while True:
            try:
                result.append([np.asarray(value).tolist() for value in session.run(fetches)])
            except tf.errors.OutOfRangeError:
                return result


RANGE = tf.data.Dataset.range


@pytest.mark.parametrize(
    "make",
    [
        lambda: RANGE(4).map(lambda x: (x * x, tf.as_string(x))),
        lambda: RANGE(4).map(lambda x: {"a": x, "b": -x}, num_parallel_calls=2).batch(2),
        lambda: RANGE(6).filter(lambda x: tf.equal(x % 2, 0)),
        lambda: RANGE(3).flat_map(lambda x: RANGE(x).map(lambda y: x + y)),
        lambda: RANGE(3).interleave(lambda x: tf.data.Dataset.from_tensors(x).repeat(2), 2),
        lambda: RANGE(4).map(lambda x: tf.split(tf.range(6) * tf.to_int32(x), 3)[1]),
        lambda: RANGE(6).apply(
            tf.contrib.data.group_by_window(lambda x: x % 2, lambda _, group: group.batch(3), 3)
        ),
        lambda: RANGE(4).map(lambda x: tf.cond(x > 1, lambda: x * 10, lambda: -x)),
        lambda: RANGE(4).map(
            lambda x: tf.while_loop(lambda i: i < 20, lambda i: i * 3 + x, [x + 1])
        ),
    ],
    ids=[
        "map",
        "parallel",
        "filter",
        "nested",
        "interleave",
        "lists",
        "groups",
        "conditional",
        "loop",
    ],
)
def test_exported_and_imported(make):
    expected, again = elements(make())
    assert again == expected and expected


def test_captured_tensors_and_variables():
    factor, offset = tf.Variable(3, dtype=tf.int64), tf.constant([1, 2], tf.int64)
    expected, again = elements(RANGE(2).map(lambda x: x * factor + offset))
    assert expected == [[[1, 2]], [[4, 5]]] and again == expected


def test_sparse_tensors():
    def sparse(x):
        return tf.SparseTensor([[0, x]], [x], [1, 4])

    dataset = RANGE(2).map(sparse).map(tf.sparse_tensor_to_dense)
    expected, again = elements(dataset)
    assert expected == [[[[0, 0, 0, 0]]], [[[0, 1, 0, 0]]]] and again == expected


def test_the_library_has_tensorflows_format():
    RANGE(2).map(lambda x: x + 1).make_one_shot_iterator()
    definition = tf.get_default_graph().as_graph_def()
    function, factory = definition.library.function
    (iterator,) = (node for node in definition.node if node.op == "OneShotIterator")
    assert iterator.attr["dataset_factory"].func.name == factory.signature.name
    (stage,) = (node for node in factory.node_def if node.op == "MapDataset")
    assert stage.attr["f"].func.name == function.signature.name
    (argument,) = function.signature.input_arg
    assert function.node_def[-1].input[0] == argument.name
    assert factory.ret["output_0"].endswith(":handle:0")


def test_a_part_of_a_graph_keeps_the_library():
    iterator = RANGE(2).map(lambda x: x + 1).make_one_shot_iterator()
    tf.identity(iterator.get_next(), name="x")
    definition = tf.graph_util.extract_sub_graph(tf.get_default_graph().as_graph_def(), ["x"])
    with tf.Graph().as_default(), tf.Session() as session:
        tf.import_graph_def(definition, name="inside")
        assert [session.run("inside/x:0") for _ in range(2)] == [1, 2]


def test_a_library_without_the_function():
    RANGE(2).map(lambda x: x + 1).make_initializable_iterator()
    definition = tf.get_default_graph().as_graph_def()
    del definition.library.function[:]
    with tf.Graph().as_default(), pytest.raises(ValueError, match="library has no function"):
        tf.import_graph_def(definition)


@pytest.mark.parametrize("name", ["nowhere:z:0", "nowhere:z:text", "nowhere", ""])
def test_a_function_with_undefined_inputs(name):
    RANGE(2).map(lambda x: x + 1).make_initializable_iterator()
    definition = tf.get_default_graph().as_graph_def()
    for change in (
        lambda function: function.node_def[-1].input.__setitem__(0, name),
        lambda function: function.ret.update({"output_0": name}),
    ):
        changed = tf.GraphDef.FromString(definition.SerializeToString())
        change(changed.library.function[0])
        with tf.Graph().as_default(), pytest.raises(ValueError, match="graph_def is invalid"):
            tf.import_graph_def(changed)


def _replace_text(branches):
    branches.s = b"text"


def _replace_by_op(branches):
    branches.list.func[0].name = "Neg"


@pytest.mark.parametrize(
    ("replace", "message"),
    [
        (_replace_text, r"'branches' must be of kind list\(func\), not string"),
        (_replace_by_op, "Expected the name of a function, not Neg"),
    ],
)
def test_a_branch_that_is_not_a_function(replace, message):
    RANGE(2).map(lambda x: tf.cond(x > 0, lambda: x, lambda: -x)).make_initializable_iterator()
    definition = tf.get_default_graph().as_graph_def()
    nodes = (node for function in definition.library.function for node in function.node_def)
    (choice,) = (node for node in nodes if node.op == "If")
    replace(choice.attr["branches"])
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        tf.import_graph_def(definition)


def test_a_function_that_contains_itself():
    RANGE(2).flat_map(lambda x: RANGE(x).map(lambda y: y + 1)).make_initializable_iterator()
    definition = tf.get_default_graph().as_graph_def()
    outer, _ = definition.library.function
    (stage,) = (node for node in outer.node_def if node.op == "MapDataset")
    stage.attr["f"].func.name = outer.signature.name
    with tf.Graph().as_default(), pytest.raises(ValueError, match="contains itself"):
        tf.import_graph_def(definition)


def test_op_definitions_declare_function_attributes():
    RANGE(2).map(lambda x: x + 1).make_initializable_iterator()
    nodes = tf.get_default_graph().get_operations()
    (stage,) = (node for node in nodes if node.type == "MapDataset")
    assert {a.name: a.type for a in stage.op_def.attr}["f"] == "func"


PROGRAM = """
import sys
import thalweg as tf
saver = tf.train.import_meta_graph(sys.argv[1] + ".meta")
with tf.Session() as session:
    saver.restore(session, sys.argv[1])
    session.run(tf.get_collection("start"))
    print([session.run("x:0").tolist() for _ in range(2)])
"""


def test_in_another_process(tmp_path):
    factor = tf.Variable(np.int64(5))
    iterator = RANGE(4).map(lambda x: x * factor).batch(2).make_initializable_iterator()
    tf.identity(iterator.get_next(), name="x")
    tf.add_to_collection("start", iterator.initializer)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        path = tf.train.Saver().save(session, str(tmp_path / "model"))
    command = [sys.executable, "-c", PROGRAM, path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[[0, 5], [10, 15]]"
