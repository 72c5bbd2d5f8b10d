"""Graphs as TensorFlow 2 writes them: handles of variables, calls, functional control flow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.graph.graphdef.defs import call, const, function, graph, node, variable
from thalweg.graph.graphdef.attributes import FunctionName

F, N, R = tf.float32, tf.int32, tf.resource


@pytest.fixture
def session() -> Any:
    with tf.Graph().as_default(), tf.Session() as made:
        yield made


def load(*nodes: Any, functions: Any = ()) -> None:
    tf.import_graph_def(graph(nodes, functions), name="")


def placeholder(name: str, dtype: Any = F, shape: Any = ()) -> Any:
    return node(name, "Placeholder", dtype=dtype, shape=tf.TensorShape(shape))


class TestResourceVariables:
    def test_read_and_change(self, session: Any):
        load(
            variable("v", F, [2]),
            const("start", [1.0, 2.0]),
            const("more", [10.0, 10.0]),
            node("set", "AssignVariableOp", "v", "start", dtype=F),
            node("add", "AssignAddVariableOp", "v", "more", dtype=F),
            node("sub", "AssignSubVariableOp", "v", "start", dtype=F),
            node("read", "ReadVariableOp", "v", dtype=F),
            node("is_set", "VarIsInitializedOp", "v"),
            node("sizes", "VariableShape", "v", out_type=N),
            node("gone", "DestroyResourceOp", "v", ignore_lookup_error=True),
        )
        assert not session.run("is_set:0")
        session.run("set")
        session.run("add")
        session.run("sub")
        session.run("gone")
        assert session.run("is_set:0")
        np.testing.assert_array_equal(session.run("read:0"), [10, 10])
        np.testing.assert_array_equal(session.run("sizes:0"), [2])

    def test_rows(self, session: Any):
        load(
            variable("v", F, [3, 2]),
            const("start", np.arange(6.0, dtype=np.float32).reshape(3, 2)),
            const("at", [2, 0]),
            const("places", [[1, 1]]),
            const("rows", [[1.0, 1.0], [2.0, 2.0]]),
            node("set", "AssignVariableOp", "v", "start", dtype=F),
            node("take", "ResourceGather", "v", "at", "^places", dtype=F, Tindices=N),
            node("one", "ResourceGatherNd", "v", "places", dtype=F, Tindices=N),
            node("add", "ResourceScatterAdd", "v", "at", "rows", dtype=F, Tindices=N),
            node("read", "ReadVariableOp", "v", dtype=F),
        )
        session.run("set")
        np.testing.assert_array_equal(session.run("take:0"), [[4, 5], [0, 1]])
        np.testing.assert_array_equal(session.run("one:0"), [3])
        session.run("add")
        np.testing.assert_array_equal(session.run("read:0"), [[2, 3], [2, 3], [5, 6]])

    def test_an_optimizer(self, session: Any):
        load(
            variable("v", F, []),
            const("start", 1.0),
            const("rate", 0.5),
            node("set", "AssignVariableOp", "v", "start", dtype=F),
            node("down", "ResourceApplyGradientDescent", "v", "rate", "start", T=F),
            node("read", "ReadVariableOp", "v", dtype=F),
        )
        session.run("set")
        session.run("down")
        assert session.run("read:0") == 0.5

    def test_handles_in_a_loop_of_primitives(self, session: Any):
        load(
            variable("v", F, []),
            const("start", 3.0),
            node("set", "AssignVariableOp", "v", "start", dtype=F),
            const("yes", True),
            node("switch", "Switch", "v", "yes", T=R),
            node("same", "Identity", "switch:1", T=R),
            node("read", "ReadVariableOp", "same", dtype=F),
        )
        session.run("set")
        assert session.run("read:0") == 3


TWICE = function(
    "twice",
    {"x": F, "v": R},
    {"y": (F, "product:z:0")},
    [
        node("value", "ReadVariableOp", "v", dtype=F),
        const("one", 1.0),
        node("count", "AssignAddVariableOp", "v", "one", "^value", dtype=F),
        node("product", "Mul", "x", "value:value:0", T=F),
    ],
    controls=["count"],
)
OUTER = function(
    "outer",
    {"x": F, "v": R},
    {"y": (F, "inner:output:0"), "handle": (R, "v")},
    [call("inner", "twice", "x", "v")],
)


class TestCalls:
    def test_nested_calls_with_effects(self, session: Any):
        load(
            placeholder("x"),
            variable("v", F, []),
            const("start", 2.0),
            node("set", "AssignVariableOp", "v", "start", dtype=F),
            call("call", "outer", "x", "v"),
            node("read", "ReadVariableOp", "call:1", "^call", dtype=F),
            functions=[TWICE, OUTER],
        )
        session.run("set")
        assert session.run("call:0", {"x:0": 5.0}) == 10
        assert session.run(["call:0", "read:0"], {"x:0": 5.0}) == [15, 4]
        names = [each.name for each in session.graph.get_operations()]
        assert "call/inner/product" in names

    def test_a_call_comes_after_its_controls(self, session: Any):
        load(
            variable("v", F, []),
            const("start", 2.0),
            node("set", "AssignVariableOp", "v", "start", dtype=F),
            call("call", "twice", "start", "v", "^set"),
            functions=[TWICE],
        )
        assert session.run("call:0") == 4

    def test_a_call_without_outputs(self, session: Any):
        count = function("count", {"v": R}, {}, list(TWICE.node_def)[:3], controls=["count"])
        load(
            variable("v", F, []),
            const("start", 2.0),
            node("set", "AssignVariableOp", "v", "start", dtype=F),
            call("call", "count", "v"),
            node("read", "ReadVariableOp", "v", dtype=F),
            functions=[count],
        )
        session.run("set")
        session.run("call")
        assert session.run("read:0") == 3

    def test_the_name_of_a_function_as_an_op(self, session: Any):
        half = function(
            "Half",
            {"x": F},
            {"y": (F, "y:z:0")},
            [const("two", 2.0), node("y", "RealDiv", "x", "two", T=F)],
        )
        load(const("x", 5.0), node("y", "Half", "x"), functions=[half])
        assert session.run("y:0") == 2.5


POSITIVE = function(
    "positive",
    {"x": F, "v": R},
    {"y": (F, "y:value:0")},
    [node("y", "ReadVariableOp", "v", dtype=F)],
)
NEGATIVE = function("negative", {"x": F, "v": R}, {"y": (F, "y:y:0")}, [node("y", "Neg", "x", T=F)])
BELOW = function(
    "below",
    {"i": N, "x": F, "v": R},
    {"go": (tf.bool, "go:z:0")},
    [const("end", 4), node("go", "Less", "i", "end", T=N)],
)
STEP = function(
    "step",
    {"i": N, "x": F, "v": R},
    {"i_next": (N, "next:z:0"), "x_next": (F, "more:z:0"), "v_next": (R, "v")},
    [
        const("one", 1),
        node("next", "AddV2", "i", "one", T=N),
        node("value", "ReadVariableOp", "v", dtype=F),
        node("more", "AddV2", "x", "value:value:0", T=F),
    ],
)


def control(name: str, op: str, *inputs: str, **attrs: Any) -> Any:
    functions = {key: FunctionName(value) for key, value in attrs.items() if isinstance(value, str)}
    return node(name, op, *inputs, **(attrs | functions))


class TestFunctionalControlFlow:
    @pytest.mark.parametrize("op", ["If", "StatelessIf"])
    def test_a_conditional(self, session: Any, op: str):
        load(
            placeholder("x"),
            variable("v", F, []),
            const("start", 2.0),
            node("set", "AssignVariableOp", "v", "start", dtype=F),
            const("zero", 0.0),
            node("is_positive", "Greater", "x", "zero", T=F),
            control(
                "y",
                op,
                "is_positive",
                "x",
                "v",
                Tcond=tf.bool,
                Tin=[F, R],
                Tout=[F],
                then_branch="positive",
                else_branch="negative",
            ),
            functions=[POSITIVE, NEGATIVE],
        )
        session.run("set")
        assert session.run("y:0", {"x:0": 7.0}) == 2
        assert session.run("y:0", {"x:0": -7.0}) == 7

    @pytest.mark.parametrize("op", ["While", "StatelessWhile"])
    def test_a_loop_over_a_handle(self, session: Any, op: str):
        load(
            placeholder("x"),
            const("zero", 0),
            variable("v", F, []),
            const("start", 2.0),
            node("set", "AssignVariableOp", "v", "start", dtype=F),
            control(
                "y",
                op,
                "zero",
                "x",
                "v",
                T=[N, F, R],
                cond="below",
                body="step",
                parallel_iterations=3,
            ),
            functions=[BELOW, STEP],
        )
        session.run("set")
        assert session.run(["y:0", "y:1"], {"x:0": 7.0}) == [4, 15]

    def test_a_case(self, session: Any):
        made = node(
            "y", "Case", "i", "x", "v", Tin=[F, R], Tout=[F], output_shapes=[tf.TensorShape([])]
        )
        made.attr["branches"].list.func.add(name="positive")
        made.attr["branches"].list.func.add(name="negative")
        load(
            placeholder("i", N),
            const("x", 3.0),
            variable("v", F, []),
            node("set", "AssignVariableOp", "v", "x", dtype=F),
            made,
            functions=[POSITIVE, NEGATIVE],
        )
        session.run("set")
        assert [session.run("y:0", {"i:0": i}) for i in (0, 1, 5)] == [3, -3, -3]

    def test_a_loop_that_changes_a_handle(self, session: Any):
        swap = function(
            "swap",
            {"v": R, "w": R},
            {"a": (R, "w"), "b": (R, "v")},
            [],
        )
        go = function(
            "go", {"v": R, "w": R}, {"go": (tf.bool, "no:output:0")}, [const("no", False)]
        )
        with pytest.raises(ValueError, match=r"the loop 'y' changes the handle v:0"):
            load(
                variable("v", F, []),
                variable("w", F, []),
                control("y", "While", "v", "w", T=[R, R], cond="go", body="swap"),
                functions=[swap, go],
            )


def chain(depth: int, width: int) -> list[Any]:
    """Functions that each call the next one some times."""
    last = function("f0", {"x": F}, {"y": (F, "y:y:0")}, [node("y", "Neg", "x", T=F)])
    result = [last]
    for level in range(1, depth):
        calls = [
            call(f"c{k}", f"f{level - 1}", "x" if k == 0 else f"c{k - 1}:output:0")
            for k in range(width)
        ]
        result.append(function(f"f{level}", {"x": F}, {"y": (F, f"c{width - 1}:output:0")}, calls))
    return result


class TestRefused:
    def test_no_such_function(self, session: Any):
        with pytest.raises(ValueError, match=r"no function 'nothing'.*in node 'y'"):
            load(const("x", 1.0), call("y", "nothing", "x"), functions=[TWICE])

    def test_another_number_of_inputs(self, session: Any):
        with pytest.raises(ValueError, match=r"'twice' takes 2 inputs, not 1.*in node 'y'"):
            load(const("x", 1.0), call("y", "twice", "x"), functions=[TWICE])

    def test_a_function_that_calls_itself(self, session: Any):
        again = function("f", {"x": F}, {"y": (F, "y:output:0")}, [call("y", "f", "x")])
        with pytest.raises(ValueError, match="contains itself"):
            load(const("x", 1.0), call("y", "f", "x"), functions=[again])

    def test_an_unknown_op_inside(self, session: Any):
        odd = function("f", {"x": F}, {"y": (F, "y:z:0")}, [node("y", "Oddity", "x", T=F)])
        with pytest.raises(ValueError, match=r"No op named Oddity.*node 'y'.*in node 'call'"):
            load(const("x", 1.0), call("call", "f", "x"), functions=[odd])

    @pytest.mark.parametrize(
        "source", ["absent:y:0", "top:other:0", "top:values:z", "top:values:9"]
    )
    @pytest.mark.parametrize("is_output", [True, False])
    def test_a_name_that_a_function_lacks(self, session: Any, source: str, is_output: bool):
        nodes = [
            const("k", 1),
            node("top", "TopKV2", "x", "k:output:0", T=F, sorted=True),
            node("y", "Neg", "x" if is_output else source, T=F),
        ]
        odd = function("f", {"x": F}, {"y": (F, source if is_output else "y:y:0")}, nodes)
        with pytest.raises(ValueError, match=f"a function uses '{source}', which it lacks"):
            load(const("x", [1.0, 2.0]), call("call", "f", "x"), functions=[odd])

    def test_more_nodes_than_memory(self, session: Any):
        with pytest.raises(ValueError, match="would add more than"):
            load(const("x", 1.0), call("y", "f39", "x"), functions=chain(40, 2))

    def test_a_list_of_more_inputs_than_memory(self, session: Any):
        with pytest.raises(ValueError, match=r"node 'y'.*Input types mismatch"):
            load(const("x", 1.0), node("y", "AddN", "x", T=F, N=1 << 60))

    def test_too_deep(self, session: Any):
        with pytest.raises(ValueError, match="nested more than 48 deep"):
            load(const("x", 1.0), call("y", "f299", "x"), functions=chain(300, 1))

    def test_deep_enough(self, session: Any):
        load(const("x", 1.0), call("y", "f39", "x"), functions=chain(40, 1))
        assert session.run("y:0") == -1
