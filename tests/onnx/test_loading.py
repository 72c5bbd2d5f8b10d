"""ONNX models in: what operators mean, versions, functions of a model, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thalweg as tf

onnx = pytest.importorskip("onnx")
helper, FLOAT, INT64 = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


@pytest.fixture
def session() -> Any:
    with tf.Graph().as_default(), tf.Session() as made:
        yield made


def info(name: str, kind: int = FLOAT, shape: Any = None) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes: Any, inputs: Any, outputs: Any, version: int = 17, **more: Any) -> Any:
    graph = helper.make_graph(nodes, "g", inputs, outputs, more.pop("initializer", []))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], **more)


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> Any:
    return helper.make_node(op, inputs.split(","), outputs.split(","), name=f"the_{op}", **attrs)


def test_placeholders_names_and_shapes(session: Any):
    weights = onnx.numpy_helper.from_array(np.eye(2, dtype=np.float32), "w")
    proto = model(
        [node("Gemm", "x,w", "y")],
        [info("x", shape=["batch", 2]), info("w", shape=[2, 2])],
        [info("y")],
        initializer=[weights],
    )
    loaded = tf.onnx.load(proto)
    assert loaded.inputs == ("x",)
    holders = loaded.placeholders()
    assert holders["x"].shape.as_list() == [None, 2]
    y = loaded(**holders)
    np.testing.assert_array_equal(session.run(y, {holders["x"]: [[1, 2]]}), [[1, 2]])
    doubled = loaded(np.ones([1, 2], np.float32), w=2 * np.eye(2, dtype=np.float32))
    np.testing.assert_array_equal(session.run(doubled), [[2, 2]])


def test_a_version_decides_what_an_operator_means(session: Any):
    x = np.arange(8, dtype=np.float32).reshape(1, 2, 4)
    for version, axes in ((12, (1, 2)), (13, (2,))):
        proto = model([node("Softmax", "x", "y")], [info("x")], [info("y")], version)
        actual = session.run(tf.onnx.load(proto)(x))
        expected = np.exp(x) / np.exp(x).sum(axes, keepdims=True)
        np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_an_operator_that_onnx_defines_by_others(session: Any):
    proto = model(
        [node("SoftmaxCrossEntropyLoss", "x,t", "y", reduction="none")],
        [info("x"), info("t", INT64)],
        [info("y")],
    )
    x, t = np.array([[0.0, 1.0], [2.0, 0.0]], np.float32), np.array([1, 0])
    actual = session.run(tf.onnx.load(proto)(x, t))
    expected = -np.log(np.exp(x) / np.exp(x).sum(1, keepdims=True))[[0, 1], t]
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_a_function_of_the_model_itself(session: Any):
    function = helper.make_function(
        "own", "Scaled", ["x"], ["y"],
        [helper.make_node("LeakyRelu", ["x"], ["y"])], [helper.make_opsetid("", 17)], ["alpha"],
    )  # fmt: skip
    reference = function.node[0].attribute.add(name="alpha", ref_attr_name="alpha")
    reference.type = onnx.AttributeProto.FLOAT
    scaled = helper.make_node("Scaled", ["x"], ["y"], domain="own", alpha=0.5)
    proto = model([scaled], [info("x")], [info("y")], functions=[function])
    proto.opset_import.append(helper.make_opsetid("own", 1))
    actual = session.run(tf.onnx.load(proto)(np.array([-2.0, 2.0], np.float32)))
    np.testing.assert_array_equal(actual, [-1, 2])


def test_a_loop_and_a_branch(session: Any):
    body = helper.make_graph(
        [
            node("Cast", "at", "at_float", to=FLOAT),
            node("Add", "total,at_float", "next"),
            node("Identity", "go", "go_on"),
            node("Identity", "next", "seen"),
        ],
        "body",
        [info("at", INT64, []), info("go", onnx.TensorProto.BOOL, []), info("total", FLOAT, [])],
        [info("go_on", onnx.TensorProto.BOOL), info("next"), info("seen")],
    )
    proto = model(
        [helper.make_node("Loop", ["count", "", "start"], ["end", "all"], body=body)],
        [info("count", INT64, []), info("start", FLOAT, [])],
        [info("end"), info("all")],
    )
    count = tf.placeholder(tf.int64, [])
    end, seen = tf.onnx.load(proto)(count, np.float32(10))
    actual = session.run([end, seen], {count: 4})
    assert actual[0] == 16
    np.testing.assert_array_equal(actual[1], [10, 11, 13, 16])


def test_eager_code():
    proto = model([node("Relu", "x", "y")], [info("x")], [info("y")])
    with tf.eager_mode():
        np.testing.assert_array_equal(tf.onnx.load(proto)(np.float32([-1, 1])).numpy(), [0, 1])


def _chain(depth: int) -> Any:
    """A model whose functions call each other."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    functions = [
        helper.make_function(
            "own", f"f{k}", ["x"], ["y"],
            [helper.make_node(f"f{k + 1}", ["x"], ["y"], domain="own")], opsets,
        )
        for k in range(depth)
    ]  # fmt: skip
    last = [helper.make_node("Relu", ["x"], ["y"])]
    functions.append(helper.make_function("own", f"f{depth}", ["x"], ["y"], last, opsets))
    first = helper.make_node("f0", ["x"], ["y"], domain="own")
    result = model([first], [info("x")], [info("y")], functions=functions)
    result.opset_import.append(helper.make_opsetid("own", 1))
    return result


class TestRefused:
    def test_an_unknown_operator_is_named_with_its_node(self):
        proto = model([node("Oddity", "x", "y")], [info("x")], [info("y")])
        with pytest.raises(NotImplementedError, match=r"Oddity \(version 17, node 'the_Oddity'\)"):
            tf.onnx.load(proto)

    def test_a_version_from_the_future(self):
        proto = model([node("Relu", "x", "y")], [info("x")], [info("y")], 9999)
        with pytest.raises(NotImplementedError, match="version 9999"):
            tf.onnx.load(proto)

    @pytest.mark.parametrize("content", [b"", b"\xff\xff\xff", b"not a model", b"\x08\x07"])
    def test_what_is_no_model(self, content: bytes, tmp_path: Path):
        path = tmp_path / "m.onnx"
        path.write_bytes(content)
        for given in (content, str(path)):
            with pytest.raises(ValueError, match="is not an ONNX model"):
                tf.onnx.load(given)

    def test_every_cut_of_a_model(self):
        whole = model([node("Relu", "x", "y")], [info("x")], [info("y")]).SerializeToString()
        for end in range(len(whole)):
            try:
                loaded = tf.onnx.load(whole[:end])
            except (ValueError, NotImplementedError):
                continue
            with pytest.raises((ValueError, TypeError)):
                loaded(np.zeros(1, np.float32))

    def test_a_value_that_nothing_gives(self, session: Any):
        proto = model([node("Relu", "nothing", "y")], [info("x")], [info("y")])
        with pytest.raises(ValueError, match="'nothing'"):
            tf.onnx.load(proto)(np.zeros(1, np.float32))

    def test_functions_too_deep(self, session: Any):
        with pytest.raises(ValueError, match="nested more than 32 deep"):
            tf.onnx.load(_chain(100))
        assert session.run(tf.onnx.load(_chain(20))(np.float32(-1))) == 0

    def test_wrong_inputs(self, session: Any):
        loaded = tf.onnx.load(model([node("Relu", "x", "y")], [info("x")], [info("y")]))
        with pytest.raises(TypeError, match=r"needs \['x'\]"):
            loaded()
        with pytest.raises(TypeError, match="takes 1 inputs, not 2"):
            loaded(1.0, 2.0)


def test_a_tensor_that_is_not_as_large_as_it_says_is_named(session: Any) -> None:
    weights = onnx.numpy_helper.from_array(np.eye(2, dtype=np.float32), "w")
    weights.dims[:] = [1 << 40, 1 << 30]
    proto = model([node("Gemm", "x,w", "y")], [info("x")], [info("y")], initializer=[weights])
    with pytest.raises(ValueError, match=r"tensor 'w' of the model: .*\(1099511627776"):
        tf.onnx.load(proto)(x=tf.ones([2, 2]))
