"""Graphs: names, scopes, devices, control dependencies, collections, look-ups."""

import pytest

import thalweg as tf


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as fresh:
        yield fresh


def test_names_are_made_unique(graph):
    names = [tf.constant(1.0, name="c").op.name for _ in range(3)]
    assert names == ["c", "c_1", "c_2"]
    assert tf.constant(1.0, name="c_1").op.name == "c_1_1"
    assert graph.get_tensor_by_name("c_2:0").op.name == "c_2"


def test_case_does_not_tell_names_apart(graph):
    assert [tf.no_op(name).name for name in ("W", "w", "W", "w_1", "a/B", "A/b")] == (
        ["W", "w_1", "W_2", "w_1_1", "a/B", "A/b_1"]
    )
    assert graph.unique_name("w", mark_as_used=False) == "w_3"
    assert graph.unique_name("W") == "W_3"
    with tf.name_scope("Layer"):
        assert tf.no_op("Op").name == "Layer/Op"
    with tf.name_scope("layer") as scope:
        assert scope == "layer_1/"
        assert tf.no_op("op").name == "layer_1/op"


def test_imported_names_are_kept_as_spelled(graph):
    tf.no_op("W")
    tf.no_op("x/y")
    graph.unique_name("free")
    proto = tf.GraphDef()
    for name in ("w", "W", "w_1", "W_1", "x", "X/y", "free"):
        proto.node.add(name=name, op="NoOp")
    tf.import_graph_def(proto, name="")
    assert [node.name for node in graph.get_operations()[2:]] == (
        ["w", "W_2", "w_1", "W_1", "x_1", "X/y", "free"]
    )
    assert graph.unique_name("X/Y") == "X/Y_1"
    tf.import_graph_def(proto, name="IMPORT")
    assert graph.get_operation_by_name("IMPORT/w").name == "IMPORT/w"
    tf.import_graph_def(proto)
    assert graph.get_operation_by_name("import_1/W").name == "import_1/W"


def test_name_scopes_nest_and_reopen():
    with tf.name_scope("a") as scope:
        assert scope == "a/"
        assert tf.no_op("x").name == "a/x"
        with tf.name_scope("b"):
            assert tf.no_op("x").name == "a/b/x"
        with tf.name_scope(None):
            assert tf.no_op("x").name == "x"
    with tf.name_scope("a"):
        assert tf.no_op("x").name == "a_1/x"
    with tf.name_scope(scope):
        assert tf.no_op("x").name == "a/x_1"


@pytest.mark.parametrize("name", ["_x", "a b", "é", "/x"])
def test_bad_names_are_refused(name):
    with pytest.raises(ValueError, match="not a valid"):
        tf.no_op(name)


def test_default_graph_stack():
    outer = tf.get_default_graph()
    inner = tf.Graph()
    with inner.as_default():
        assert tf.get_default_graph() is inner
        assert tf.constant(1).graph is inner
    assert tf.get_default_graph() is outer


def test_inputs_choose_the_graph():
    other = tf.Graph()
    with other.as_default():
        x = tf.constant(1.0)
    assert tf.negative(x).graph is other
    with pytest.raises(ValueError, match="same graph"):
        tf.add(x, tf.constant(2.0))


def test_devices_merge_inside_out():
    with tf.device("/job:ps/task:1"):
        with tf.device("/cpu:0"):
            assert tf.no_op().device == "/job:ps/task:1/device:CPU:0"
            with tf.device("/job:worker"):
                assert tf.no_op().device == "/job:worker/task:1/device:CPU:0"
            with tf.device(None):
                assert tf.no_op().device == ""
        assert tf.no_op().device == "/job:ps/task:1"
    with tf.device(lambda op: "/gpu:1" if op.type == "NoOp" else "/cpu:0"):
        assert tf.no_op().device == "/device:GPU:1"
        assert tf.constant(1).device == "/device:CPU:0"


class Captured:
    """What stands in for a node in libraries: its device is set by `_set_device` alone."""

    def __init__(self):
        self._devices = [None]

    @property
    def device(self):
        return self._devices[-1]

    def _set_device(self, device):
        self._devices.append(device)


def test_a_library_asks_for_the_device_of_the_open_scopes(graph):
    def devices():
        captured = Captured()
        graph._apply_device_functions(captured)
        return captured._devices[1:]

    assert devices() == []
    with tf.device("/job:ps"), tf.device("/cpu:1"):
        assert devices() == ["/device:CPU:1", "/job:ps/device:CPU:1"]
        with tf.device(None):
            assert devices() == []
        with tf.colocate_with(tf.no_op()):
            assert devices() == []


def test_colocation():
    with tf.device("/cpu:3"):
        a = tf.constant(1.0, name="a")
    with tf.colocate_with(a.op):
        b = tf.constant(2.0, name="b")
    assert b.op.colocation_groups() == [b"loc:@a"]
    assert b.device == "/device:CPU:3"


def test_control_dependencies():
    a, b = tf.no_op("a"), tf.constant(1.0, name="b")
    with tf.control_dependencies([a, b]):
        c = tf.constant(2.0)
        assert set(c.op.control_inputs) == {a, b.op}
        assert tf.negative(c).op.control_inputs == []  # its input waits already
        with tf.control_dependencies(None):
            assert tf.no_op().control_inputs == []
    assert tf.no_op().control_inputs == []


def test_collections(graph):
    graph.add_to_collection("k", 1)
    tf.add_to_collections(["k", "m"], 2)
    assert tf.get_collection("k") == [1, 2]
    assert tf.get_collection("m") == [2]
    tf.get_collection_ref("k").append(3)
    assert tf.get_collection("k") == [1, 2, 3]
    x = tf.constant(1, name="scope/x")
    graph.add_to_collection("n", x)
    assert tf.get_collection("n", "scope") == [x]
    assert tf.get_collection("n", "other") == []


def test_look_ups(graph):
    x = tf.constant(1.0, name="x")
    assert graph.as_graph_element("x:0") is x
    assert graph.as_graph_element("x") is x.op
    assert graph.get_operation_by_name("x") is x.op
    with pytest.raises(KeyError, match="refers to an Operation not in the graph"):
        graph.get_operation_by_name("y")
    with pytest.raises(KeyError, match="does not exist"):
        graph.get_tensor_by_name("y:0")
    with pytest.raises(KeyError, match="only 1 outputs"):
        graph.get_tensor_by_name("x:1")
    with pytest.raises(ValueError, match="op_name"):
        graph.get_tensor_by_name("x")
    with pytest.raises(TypeError, match="Can not convert a float"):
        graph.as_graph_element(1.0)
    with tf.Graph().as_default(), pytest.raises(ValueError, match="not an element of this graph"):
        tf.get_default_graph().as_graph_element(x)


def test_finalized_graph_refuses_nodes(graph):
    tf.constant(1.0)
    graph.finalize()
    with pytest.raises(RuntimeError, match="finalized"):
        tf.constant(2.0)


def test_the_users_line_is_kept():
    x = tf.placeholder(tf.float32, name="x") + 1.0
    assert x.op.origin.startswith(__file__)
    line = int(x.op.origin.rsplit(":", 1)[1])
    with open(__file__) as source:
        assert 'tf.placeholder(tf.float32, name="x") + 1.0' in source.readlines()[line - 1]


def test_tensors_are_not_python_values():
    x = tf.placeholder(tf.float32, name="x")
    with pytest.raises(TypeError, match=r"Python bool.*test_graph\.py"):
        bool(x)
    with pytest.raises(TypeError, match="not iterable"):
        iter(x)
    with pytest.raises(TypeError, match="len"):
        len(x)
    assert not hasattr(x, "__len__")  # as programs ask
    assert repr(x) == "<tf.Tensor 'x:0' shape=<unknown> dtype=float32>"
    assert str(x) == 'Tensor("x:0", dtype=float32)'


def test_bad_dtypes_name_op_and_line():
    x = tf.placeholder(tf.float32, [2], name="x")
    y = tf.placeholder(tf.int32, [2], name="y")
    with pytest.raises((TypeError, ValueError), match=r"int32.*float32|float32.*int32"):
        tf.add(x, y)
    with pytest.raises(TypeError, match="string"):
        tf.negative(tf.constant("text"))


def test_bad_shapes_name_the_shapes():
    with pytest.raises(ValueError, match=r"'Add'.*\(2,\), \(3,\)"):
        tf.add(tf.zeros([2]), tf.zeros([3]))


def test_nodes_by_the_name_of_their_op(graph):
    x = tf.constant([[1.0, 2.0]])
    node = graph.create_op("MatMul", [x, x], name="product", attrs={"transpose_b": True})
    assert node.output.shape.as_list() == [1, 1]
    assert graph.create_op("AddN", [x, x]).type == "AddN"
    with pytest.raises(ValueError, match="No op named Nonsense"):
        graph.create_op("Nonsense", [])


def test_consumers():
    x = tf.constant(1.0)
    assert x.consumers() == []
    y = x + x
    z = -x
    assert x.consumers() == [y.op, z.op]


def test_conversion_functions_are_asked_in_order_of_priority():
    class Mine:
        pass

    tf.register_tensor_conversion_function(Mine, lambda *a, **k: NotImplemented, 0)
    tf.register_tensor_conversion_function(
        Mine, lambda value, dtype=None, name=None, as_ref=False: tf.constant(7.0), 50
    )
    with tf.Session() as session:
        assert session.run(tf.negative(Mine())) == -7.0
