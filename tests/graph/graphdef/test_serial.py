"""GraphDefs: what is written, what comes back, and what `import_graph_def` refuses."""

import importlib
import itertools
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from google.protobuf import text_format

import thalweg as tf
from thalweg.graph.graphdef import attributes, serial
from thalweg.graph.graphdef.attributes import AttributeKind
from thalweg.graph.op import REGISTRY, Op


def graph_def(text: str) -> Any:
    return text_format.Parse(text, tf.GraphDef())


def make(text: str, **options: Any) -> Any:
    """Import a GraphDef given as text."""
    return tf.import_graph_def(graph_def(text), **options)


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as made:
        yield made


INT = "node { name: 'a' op: 'Const' attr { key: 'dtype' value { type: DT_INT32 } } attr { key: 'value' value { tensor { dtype: DT_INT32 tensor_shape {} int_val: 7 } } } }"  # noqa: E501 - one node
NOTHING = "node { name: 'a' op: 'NoOp' }"
NEGATIVE = "attr { key: 'T' value { type: DT_INT32 } }"


class TestWriting:
    def test_a_node(self):
        x = tf.placeholder(tf.float32, [None, 3], name="x")
        with tf.control_dependencies([tf.no_op(name="first")]), tf.device("/job:ps/cpu:0"):
            y = tf.multiply(x, x, name="y")
        assert y.op.node_def == text_format.Parse(
            "name: 'y' op: 'Mul' device: '/job:ps/device:CPU:0' "
            "input: 'x' input: 'x' input: '^first' "
            "attr { key: 'T' value { type: DT_FLOAT } }",
            tf.NodeDef(),
        )

    def test_a_later_output_has_its_index(self):
        parts = tf.split(tf.zeros([4]), 2)
        assert tf.negative(parts[1]).op.node_def.input == [f"{parts[1].op.name}:1"]

    def test_versions(self, graph: Any):
        written = graph.as_graph_def()
        assert written.versions.producer == tf.GRAPH_DEF_VERSION
        assert written.versions.min_consumer == tf.GRAPH_DEF_VERSION_MIN_CONSUMER
        assert not written.HasField("library")

    def test_the_nodes_since_a_version(self, graph: Any):
        tf.constant(1, name="old")
        version = graph.version
        tf.constant(2, name="new")
        assert [node.name for node in graph.as_graph_def(from_version=version).node] == ["new"]

    def test_shapes_on_demand(self, graph: Any):
        tf.placeholder(tf.float32, [None, 3])
        (node,) = graph.as_graph_def(add_shapes=True).node
        assert [dim.size for dim in node.attr["_output_shapes"].list.shape[0].dim] == [-1, 3]
        assert "_output_shapes" not in graph.as_graph_def().node[0].attr

    def test_a_session_has_the_graph_def_of_its_graph(self, graph: Any):
        tf.constant(1)
        with tf.Session() as session:
            assert session.graph_def == graph.as_graph_def()

    def test_fields_that_are_called_otherwise(self):
        node = tf.placeholder(tf.float32, [2]).op
        assert "shape" in node.node_def.attr
        assert "given_shape" not in node.node_def.attr
        assert node.get_attr("shape").as_list() == [2]


VALUES = [
    (True, "b", None),
    (-3, "i", None),
    (0.1, "f", None),
    ("text", "s", None),
    (tf.int64, "type", None),
    (tf.TensorShape([2, None]), "shape", None),
    (tf.TensorShape(None), "shape", None),
    ((1, 2), "list", None),
    ((0.5,), "list", None),
    (("a", "b"), "list", None),
    ((tf.int32, tf.string), "list", None),
    ((), "list", AttributeKind("i", is_list=True)),
    (b"\xff", "s", None),
]


@pytest.mark.parametrize(("value", "field", "kind"), VALUES, ids=repr)
def test_attribute(value: Any, field: str, kind: Any):
    written = attributes.encode(value, kind)
    assert written.WhichOneof("value") == field
    read = attributes.decode(written)
    assert repr(read) == repr(value)  # two unknown shapes are never equal


ARRAYS = [
    *(np.array([[1, 2, 3]], d) for d in ("int8", "int32", "int64", "uint8", "uint16", "uint64")),
    *(np.array([0.5, -2, np.inf], d) for d in ("float16", "float32", "float64")),
    np.array([0.5, -2], tf.bfloat16.as_numpy_dtype),
    np.array([0.5, -2], tf.float8_e4m3fn.as_numpy_dtype),
    np.array([1 + 2j], np.complex64),
    np.array([1 + 2j, 3], np.complex128),
    np.array([True, False]),
    np.array([b"a", b"\xff"], object),
    np.zeros((0, 3), np.float32),
    np.array(7),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype}{list(a.shape)}")
def test_constant(array: Any, graph: Any):
    tf.constant(array, name="c")
    written = tf.GraphDef.FromString(graph.as_graph_def().SerializeToString())
    with tf.Graph().as_default(), tf.Session() as session:
        (c,) = tf.import_graph_def(written, return_elements=["c:0"])
        value = session.run(c)
    assert value.dtype == array.dtype
    np.testing.assert_array_equal(value, array)


#: The ops of the package: those of tests depend on which files were imported before.
OPS = [n for n, op in REGISTRY.items() if op.__module__.startswith("thalweg.")]


@pytest.mark.parametrize("name", sorted(OPS))
def test_every_op_has_an_op_def(name: str):
    """Each field has a kind that a GraphDef can hold, and its default fits."""
    block = REGISTRY[name]
    assert attributes.kinds(block).keys() >= block.fields.keys()
    written = serial.op_def(block)
    assert written.name == name
    assert len(written.input_arg) == len(block.parsed.inputs)
    assert len({attribute.name for attribute in written.attr}) == len(written.attr)


class Repeated(Op):
    """An op as users write them: its annotations are types, and not all of a kind."""

    signature = "x: T -> y: Tout; T: numeric"

    Tout: tf.DType
    times: int
    mode: Literal["once", "twice"] = "once"
    tags: "tuple[bytes, ...]" = ()

    def shape(self, x: tf.Tensor) -> tf.TensorShape:
        return x.shape

    def numpy(self, x: Any) -> Any:
        repeated = x * self.times * (2 if self.mode == "twice" else 1)
        return repeated.astype(self.Tout.as_numpy_dtype)


def test_attributes_of_ops_of_users(graph: Any):
    op = Repeated(Tout=tf.float32, times=3, mode="twice", tags=(b"text", b"\xff"))
    op(tf.constant(5), name="y")
    with tf.Graph().as_default(), tf.Session() as session:
        (y,) = tf.import_graph_def(graph.as_graph_def(), return_elements=["y:0"])
        assert y.op.op == op
        assert session.run(y) == 30


def test_a_type_has_its_kind_whatever_its_annotation():
    written = {attribute.name: attribute.type for attribute in serial.op_def(Repeated).attr}
    assert written == {"T": "type", "Tout": "type", "tags": "list(string)"}


class TestImporting:
    def test_names_go_below_the_scope(self):
        a, b = make(
            f"{INT} node {{ name: 's/b' op: 'Neg' input: 'a' {NEGATIVE} }}",
            return_elements=["a", "s/b:0"],
        )
        assert (a.name, b.name) == ("import/a", "import/s/b:0")
        assert b.op.inputs[0] is a.outputs[0]

    def test_names_that_are_taken(self):
        for expected in ("a", "a_1"):
            (a,) = make(NOTHING, return_elements=["a"], name="")
            assert a.name == expected

    def test_nodes_in_any_order(self):
        text = f"node {{ name: 'b' op: 'Neg' input: 'a:0' {NEGATIVE} }} {INT}"
        (b,) = make(text, return_elements=["b:0"])
        with tf.Session() as session:
            assert session.run(b) == -7

    def test_deep_graphs(self, graph: Any):
        x = tf.constant(0)
        for _ in range(3000):
            x = tf.negative(x)
        written = graph.as_graph_def()
        backwards = tf.GraphDef(node=reversed(written.node))
        with tf.Graph().as_default() as again:
            tf.import_graph_def(backwards)
            assert again.version == graph.version

    def test_control_inputs(self):
        a, b = make(
            f"{NOTHING} node {{ name: 'b' op: 'NoOp' input: '^a' }}", return_elements=["a", "b"]
        )
        assert list(b.control_inputs) == [a]

    def test_replaced_inputs(self):
        text = f"{INT} node {{ name: 'b' op: 'Neg' input: 'a' {NEGATIVE} }}"
        mine = tf.constant(5)
        for key in ("a", "a:0", b"a:0"):
            (b,) = make(text, input_map={key: mine}, return_elements=["b"])
            assert b.inputs[0] is mine

    def test_replaced_inputs_need_not_exist(self):
        text = f"node {{ name: 'b' op: 'Neg' input: 'a' {NEGATIVE} }}"
        (b,) = make(text, input_map={"a": 5}, return_elements=["b:0"])
        with tf.Session() as session:
            assert session.run(b) == -5

    def test_colocation_follows_the_new_names(self):
        text = (
            "node { name: 'b' op: 'NoOp' attr { key: '_class' value { list { s: 'loc:@a' } } } }"
            + NOTHING
        )
        (b,) = make(text, return_elements=["b"])
        assert b.colocation_groups() == [b"loc:@import/a"]

    def test_devices_merge(self):
        with tf.device("/job:ps"):
            (a,) = make("node { name: 'a' op: 'NoOp' device: '/cpu:1' }", return_elements=["a"])
        assert a.device == "/job:ps/device:CPU:1"

    def test_shapes_of_the_producer(self):
        text = (
            "node { name: 'a' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } "
            "attr { key: 'shape' value { shape { unknown_rank: true } } } "
            "attr { key: '_output_shapes' value { list { shape { dim { size: 3 } } } } } }"
        )
        (a,) = make(text, return_elements=["a:0"])
        assert a.shape.as_list() == [3]

    def test_older_ops(self, graph: Any):
        tf.concat([[1], [2, 3]], 0, name="joined")
        written = graph.as_graph_def()
        (node,) = [node for node in written.node if node.name == "joined"]
        node.op = "Concat"  # which took the axis first
        node.input[:] = [node.input[2], *node.input[:2]]
        (joined,) = tf.import_graph_def(written, return_elements=["joined:0"])
        with tf.Session() as session:
            assert session.run(joined).tolist() == [1, 2, 3]

    @pytest.mark.parametrize("name", ["Mul", "MulV2", "BatchMul"])
    def test_ops_of_other_versions(self, name: str):
        text = f"{INT} node {{ name: 'b' op: '{name}' input: 'a' input: 'a' {NEGATIVE} }}"
        (b,) = make(text, return_elements=["b"])
        assert b.type == "Mul"

    def test_gradients_flow_through(self, graph: Any):
        x = tf.placeholder(tf.float64, [2], name="x")
        tf.reduce_sum(x * x, name="y")
        written = graph.as_graph_def()
        with tf.Graph().as_default(), tf.Session() as session:
            mine = tf.constant([1.0, 2.0], tf.float64)
            (y,) = tf.import_graph_def(written, {"x": mine}, ["y:0"])
            np.testing.assert_allclose(session.run(tf.gradients(y, mine)[0]), [2, 4])

    def test_attributes_of_a_newer_producer(self):
        text = "node { name: 'a' op: 'NoOp' attr { key: 'new' value { i: 4 } } }"
        ops = importlib.import_module("tensorboard.compat.proto.op_def_pb2").OpList()
        attribute = "attr { name: 'new' type: 'int' default_value { i: %d } }"
        text_format.Parse("op { name: 'NoOp' " + attribute % 4 + " }", ops)
        (a,) = make(text, return_elements=["a"], producer_op_list=ops)
        with pytest.raises(ValueError, match="No attr named 'new'"):
            a.get_attr("new")
        ops.op[0].attr[0].default_value.i = 5
        (a,) = make(text, return_elements=["a"], producer_op_list=ops)
        assert a.get_attr("new") == 4

    @pytest.mark.parametrize(
        ("versions", "text"),
        [("producer: -1", "version -1 below min producer"), ("min_consumer: 999", "above current")],
    )
    def test_steps_of_graphs_of_other_versions(self, versions: str, text: str):
        with tf.Graph().as_default(), tf.Session() as session:
            (a,) = make(f"versions {{ {versions} }} {NOTHING}", return_elements=["a"])
            with pytest.raises(ValueError, match=text):
                session.run(a)


ERRORS = {
    "no proto": (lambda: tf.import_graph_def(""), TypeError, "must be a GraphDef proto"),
    "map": (lambda: make("", input_map=[1]), TypeError, "input_map must be a dictionary"),
    "map at the root": (lambda: make("", input_map={"a": 1}, name=""), ValueError, "non-empty"),
    "unused map": (lambda: make(NOTHING, input_map={"b": 1}), ValueError, r"graph_def: \[b:0\]"),
    "elements": (lambda: make("", return_elements=[7]), TypeError, "list of strings"),
    "element": (lambda: make(NOTHING, return_elements=["b"]), ValueError, "'b' not found"),
    "output": (lambda: make(INT, return_elements=["a:1"]), ValueError, "'a:1' not found"),
    "op": (lambda: make("node { name: 'a' op: 'Strange' }"), ValueError, "No op named Strange"),
    "op of others": (lambda: make(NOTHING, op_dict={}), ValueError, "No op named NoOp"),
    "input": (
        lambda: make(f"node {{ name: 'b' op: 'Neg' input: 'a' {NEGATIVE} }}"),
        ValueError,
        "Input tensor 'a:0' not found",
    ),
    "control input": (
        lambda: make("node { name: 'b' op: 'NoOp' input: '^a' }"),
        ValueError,
        r"Control input '\^a' not found",
    ),
    "name": (
        lambda: make("node { name: 'b' op: 'NoOp' input: 'a:b' }"),
        ValueError,
        "Cannot convert 'a:b' to a tensor name",
    ),
    "too many": (
        lambda: make(f"{INT} node {{ name: 'b' op: 'NoOp' input: 'a' }}"),
        ValueError,
        "More inputs specified",
    ),
    "text as a number": (
        lambda: make(
            f"{INT} node {{ name: 'b' op: 'Pack' input: 'a' {NEGATIVE} "
            "attr { key: 'N' value { s: 'one' } } }"
        ),
        ValueError,
        "invalid at node 'b': the attribute 'N' must be of kind int, not string",
    ),
    "one type as a list": (
        lambda: make(f"{INT} node {{ name: 'b' op: 'IdentityN' input: 'a' {NEGATIVE} }}"),
        ValueError,
        r"invalid at node 'b': the attribute 'T' must be of kind list\(type\), not type",
    ),
    "too few": (
        lambda: make(f"{INT} node {{ name: 'b' op: 'Mul' input: 'a' {NEGATIVE} }}"),
        ValueError,
        "expected 'int32, int32' but got 'int32'",
    ),
    "dtype": (
        lambda: make(
            f"{INT} node {{ name: 'b' op: 'Neg' input: 'a' "
            "attr { key: 'T' value { type: DT_FLOAT } } }"
        ),
        ValueError,
        "Cannot convert a tensor of type int32 to an input of type float32",
    ),
    "attribute": (
        lambda: make("node { name: 'a' op: 'Placeholder' }"),
        ValueError,
        "needs the attribute 'dtype'",
    ),
    "cycle": (
        lambda: make(
            f"node {{ name: 'a' op: 'Neg' input: 'b' {NEGATIVE} }}"
            f"node {{ name: 'b' op: 'Neg' input: 'a' {NEGATIVE} }}"
        ),
        ValueError,
        "cycle through node",
    ),
    "peer": (
        lambda: make(
            "node { name: 'b' op: 'NoOp' attr { key: '_class' value { list { s: 'loc:@a' } } } }"
        ),
        ValueError,
        "does not exist during import",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_error(name: str):
    build, kind, text = ERRORS[name]
    with pytest.raises(kind, match=text):
        build()


VALUES = {
    "bool": "b: true",
    "int": "i: 2",
    "float": "f: 2.0",
    "string": "s: 'two'",
    "type": "type: DT_FLOAT",
    "shape": "shape { dim { size: 2 } }",
    "tensor": "tensor { dtype: DT_FLOAT tensor_shape {} float_val: 2 }",
    "func": "func { name: 'f' }",
    "list()": "list {}",
    "list(int)": "list { i: 2 }",
    "list(type)": "list { type: DT_FLOAT }",
    "list(string)": "list { s: 'two' }",
    "list(shape)": "list { shape { unknown_rank: true } }",
}


def test_attributes_of_another_kind(graph: Any):
    x = tf.placeholder(tf.float32, [1, 4, 4, 2], name="x")
    tf.nn.max_pool(x, 2, 2, "SAME")
    tf.nn.lrn(x)
    tf.matmul(tf.stack([x, x]), tf.constant(1.0, shape=[1, 1, 1, 2, 1]))
    tf.FIFOQueue(2, [tf.int32], [[]]).dequeue()
    written = graph.as_graph_def()
    declared = {node.name: serial.op_def(REGISTRY[node.op]).attr for node in written.node}
    covered = {attribute.type for attributes in declared.values() for attribute in attributes}
    assert covered >= VALUES.keys() - {"func", "list()", "list(string)"}
    for node in written.node:
        kinds = {attribute.name: attribute.type for attribute in declared[node.name]}
        for name, (actual, text) in itertools.product(kinds.keys() & node.attr, VALUES.items()):
            if actual == kinds[name] or (actual == "list()" and kinds[name].startswith("list")):
                continue
            changed = tf.GraphDef.FromString(written.SerializeToString())
            (other,) = [each for each in changed.node if each.name == node.name]
            other.attr[name].CopyFrom(text_format.Parse(text, tf.AttrValue()))
            with pytest.raises(ValueError, match="graph_def is invalid") as caught:
                tf.import_graph_def(changed)
            assert str(caught.value) == (
                f"graph_def is invalid at node {node.name!r}: the attribute {name!r} must be of "
                f"kind {kinds[name]}, not {actual}."
            )


def test_an_attribute_without_a_value_is_left_out():
    attribute = "attr { key: 'transpose_a' value {} } attr { key: 'new' value {} }"
    with pytest.raises(ValueError, match="needs the attribute 'dtype'"):
        make("node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value {} } }")
    text = f"node {{ name: 'b' op: 'MatMul' input: 'x' input: 'x' {attribute} }}"
    x = tf.ones([2, 2])
    (b,) = make(text, input_map={"x": x}, return_elements=["b"])
    assert b.get_attr("transpose_a") is False


@pytest.mark.parametrize("count", [0, 2, 1 << 40])
def test_a_number_of_outputs_that_other_attributes_contradict(graph: Any, count: int):
    features = {"a": tf.FixedLenFeature([2], tf.float32), "b": tf.VarLenFeature(tf.int64)}
    tf.parse_single_example(tf.placeholder(tf.string, []), features, name="parse")
    written = graph.as_graph_def()
    written.node[-1].attr["num_sparse"].i = count
    with pytest.raises(ValueError, match="graph_def is invalid at node 'parse/parse'"):
        tf.import_graph_def(written)


class TestUtil:
    def test_the_part_that_outputs_need(self, graph: Any):
        a = tf.constant(1, name="a")
        tf.negative(tf.constant(2, name="other"))
        with tf.control_dependencies([tf.no_op(name="first")]):
            tf.negative(a, name="b")
        part = tf.graph_util.extract_sub_graph(graph.as_graph_def(), ["b"])
        assert [node.name for node in part.node] == ["a", "first", "b"]
        with pytest.raises(AssertionError, match="c is not in graph"):
            tf.graph_util.extract_sub_graph(graph.as_graph_def(), ["c"])

    def test_frozen_variables(self, graph: Any):
        variable = tf.Variable([1.0, 2.0], name="v")
        tf.multiply(variable, 2.0, name="y")
        with tf.Session() as session:
            session.run(variable.initializer)
            frozen = tf.graph_util.convert_variables_to_constants(
                session, graph.as_graph_def(), ["y"]
            )
            kept = tf.graph_util.convert_variables_to_constants(
                session, graph.as_graph_def(), ["y"], variable_names_blacklist=["v"]
            )
        assert {node.op for node in frozen.node if node.name == "v"} == {"Const"}
        assert {node.op for node in kept.node if node.name == "v"} == {"VariableV2"}
        with tf.Graph().as_default(), tf.Session() as session:
            (y,) = tf.import_graph_def(frozen, return_elements=["y:0"])
            assert session.run(y).tolist() == [2, 4]

    def test_training_nodes(self, graph: Any):
        x = tf.placeholder(tf.float32, name="x")
        tf.negative(tf.identity(tf.identity(x, name="i"), name="j"), name="y")
        slim = tf.graph_util.remove_training_nodes(graph.as_graph_def())
        assert [node.name for node in slim.node] == ["x", "y"]
        assert slim.node[1].input == ["x"]
        kept = tf.graph_util.remove_training_nodes(graph.as_graph_def(), ["j"])
        assert [node.name for node in kept.node] == ["x", "j", "y"]

    def test_what_must_run_on_a_cpu(self):
        assert tf.graph_util.must_run_on_cpu(tf.constant(1).op)
        assert tf.graph_util.must_run_on_cpu(tf.constant("a").op.node_def)
        assert not tf.graph_util.must_run_on_cpu(tf.constant(1.0).op)
        variable = tf.Variable(1.0).op
        assert tf.graph_util.must_run_on_cpu(variable, pin_variables_on_cpu=True)
        assert not tf.graph_util.must_run_on_cpu(variable)

    def test_shape_of_an_input(self, graph: Any):
        tf.zeros([2, 3], name="x")
        shape = tf.graph_util.tensor_shape_from_node_def_name(graph, "x")
        assert shape.as_list() == [2, 3]

    @pytest.mark.parametrize("as_text", [True, False])
    def test_files(self, graph: Any, tmp_path: Path, as_text: bool):
        tf.constant(1)
        path = tf.train.write_graph(graph, str(tmp_path / "new"), "graph.pb", as_text)
        content = Path(path).read_bytes()
        written = tf.GraphDef()
        if as_text:
            text_format.Parse(content, written)
        else:
            written.ParseFromString(content)
        assert written == graph.as_graph_def()


def test_device_functions_see_every_imported_node():
    with tf.Graph().as_default() as graph:
        with tf.device("/job:ps"):
            v = tf.Variable(1.0)
        v.assign(2.0)
    content, seen = graph.as_graph_def(), []
    with tf.Graph().as_default() as imported:
        with tf.device(lambda node: seen.append(node.name) or "/cpu:1"):
            tf.import_graph_def(content, name="")
        made = {node.name: node.device for node in imported.get_operations()}
    assert seen == [node.name for node in graph.get_operations()]
    assert made["Variable/Assign"] == made["Variable"] == made["Assign"]
