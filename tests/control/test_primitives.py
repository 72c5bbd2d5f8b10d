"""Switch, Merge, Enter, Exit, NextIteration and LoopCond, used directly."""

import signal
import subprocess
import sys

import pytest

import thalweg as tf
from tests.op_coverage import gradient_check
from thalweg.control import primitives

control = tf.control
same = primitives.same


@pytest.fixture
def sess():
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


def counting_loop(limit, step=1, frame="frame", parallel=10):
    """The first number not under `limit`, and the Merge that the loop begins with."""
    start = control.enter(tf.constant(0), frame, parallel_iterations=parallel)
    maximum = control.enter(limit, frame, is_constant=True, parallel_iterations=parallel)
    merged = control.merge([start, start])
    goes_on = control.loop_cond(merged.output < maximum)
    leaves, stays = control.switch(merged.output, goes_on)
    merged.output.op._update_input(1, control.next_iteration(stays + step))
    return control.exit(leaves), merged.output.op


class TestSwitchAndMerge:
    def test_the_chosen_output_is_alive(self, sess):
        x, choice = tf.placeholder(tf.float32, []), tf.placeholder(tf.bool, [])
        no, yes = control.switch(x, choice)
        merged = control.merge([no * 2.0, yes * 3.0])
        assert sess.run(list(merged), {x: 5.0, choice: True}) == [15.0, 1]
        assert sess.run(list(merged), {x: 5.0, choice: False}) == [10.0, 0]

    def test_fields_have_names(self, sess):
        switched = control.switch(tf.constant(1), tf.constant(True))
        assert switched._fields == ("output_false", "output_true")
        assert control.merge([switched.output_true])._fields == ("output", "value_index")

    def test_fetching_a_dead_value_fails(self, sess):
        dead, _ = control.switch(tf.constant(1), tf.constant(True))
        with pytest.raises(tf.errors.InvalidArgumentError, match="not valid"):
            sess.run(tf.identity(dead))
        assert sess.run(tf.constant(3)) == 3

    def test_dead_tokens_follow_control_edges(self, sess):
        choice = tf.placeholder(tf.bool, [])
        log = tf.Variable(0)
        no, yes = control.switch(tf.constant(1), choice)
        with tf.control_dependencies([tf.identity(yes)]):
            ran = tf.assign_add(log, 1)
        merged = control.merge([no, tf.identity(ran)]).output
        sess.run(log.initializer)
        sess.run(merged, {choice: False})
        assert sess.run(log) == 0
        sess.run(merged, {choice: True})
        assert sess.run(log) == 1

    def test_a_trigger_fires_after_dead_nodes(self, sess):
        no, yes = control.switch(tf.constant(1), tf.constant(True))
        with tf.control_dependencies([tf.identity(no), tf.identity(yes)]):
            trigger = control.control_trigger()
        with tf.control_dependencies([trigger]):
            after = tf.constant(7)
        assert sess.run(after) == 7

    def test_a_merge_of_dead_inputs_is_dead(self, sess):
        no, yes = control.switch(tf.constant(1), tf.constant(True))
        inner_no, inner_yes = control.switch(no, tf.constant(True))
        dead = control.merge([inner_no, inner_yes]).output
        assert sess.run(control.merge([dead, yes + 1]).output) == 2

    def test_references_pass(self, sess):
        variable = tf.Variable(7)
        no, yes = control.switch(variable._ref(), tf.constant(True))
        merged = control.merge([no, yes]).output
        assert merged.dtype.is_ref_dtype
        sess.run(variable.initializer)
        assert sess.run(tf.assign(merged, 9)) == 9
        assert sess.run(variable) == 9

    def test_slices_and_sparse_tensors(self, sess):
        slices = tf.IndexedSlices(tf.constant([1.0, 2.0]), tf.constant([0, 3]))
        _, yes = control.switch(slices, tf.constant(True))
        merged = control.merge([yes, yes]).output
        assert sess.run(merged.indices).tolist() == [0, 3]

    def test_gradients(self, sess):
        choice = tf.placeholder_with_default(True, [])
        x = tf.constant([2.0, 3.0], tf.float64)
        no, yes = control.switch(x, choice)
        y = control.merge([no * no, yes * yes * yes]).output
        with gradient_check(second=True):
            (first,) = tf.gradients(y, x)
            (second,) = tf.gradients(first, x)
        assert tf.test.compute_gradient_error(x, [2], y, [2]) < 1e-5
        assert tf.test.compute_gradient_error(x, [2], first, [2]) < 1e-5
        assert sess.run(first, {choice: True}).tolist() == [12.0, 27.0]
        assert sess.run(first, {choice: False}).tolist() == [4.0, 6.0]
        assert sess.run(second, {choice: True}).tolist() == [12.0, 18.0]

    @pytest.mark.parametrize("chosen", [True, False])
    def test_gradients_of_references(self, sess, chosen):
        variable, choice = tf.Variable([2.0, 3.0]), tf.constant(chosen)
        x = variable._ref()
        merged = control.merge(control.switch(x, choice)).output
        with gradient_check(second=True):
            (first,) = tf.gradients(tf.identity(merged) ** 3, x)
            (second,) = tf.gradients(first, x)
        assert {merged.op.type, merged.op.inputs[0].op.type} == {"RefMerge", "RefSwitch"}
        sess.run(variable.initializer)
        assert [a.tolist() for a in sess.run([first, second])] == [[12.0, 27.0], [12.0, 18.0]]

    @pytest.mark.parametrize(
        "make",
        [
            lambda: tf.constant(7.0),
            lambda: tf.Variable(7.0),
            lambda: tf.FIFOQueue(1, tf.float32).queue_ref,
        ],
    )
    def test_a_step_runs_anew_whatever_its_last_node(self, sess, make):
        queue = tf.FIFOQueue(2, tf.float32, [()])
        no, yes = control.switch(queue.dequeue(), tf.constant(True))
        merged = control.merge([no, yes * 3.0]).output
        last = make().op.outputs[0]
        sess.run([tf.global_variables_initializer(), queue.enqueue_many([[1.0, 2.0]])])
        assert [sess.run([merged, last])[0] for _ in range(2)] == [3.0, 6.0]


class TestLoops:
    def test_a_loop_counts(self, sess):
        result, _ = counting_loop(tf.placeholder_with_default(10, []), 3)
        assert sess.run(result) == 12

    @pytest.mark.parametrize("parallel", [1, 2, 32])
    def test_any_number_of_iterations_at_once(self, sess, parallel):
        result, _ = counting_loop(tf.placeholder_with_default(100, []), 1, parallel=parallel)
        assert sess.run(result) == 100

    def test_no_iterations(self, sess):
        result, _ = counting_loop(tf.placeholder_with_default(0, []))
        assert sess.run(result) == 0

    def test_a_loop_in_a_branch_not_taken_is_dead(self, sess):
        choice = tf.placeholder(tf.bool, [])
        no, yes = control.switch(tf.constant(5), choice)
        result, _ = counting_loop(yes)
        merged = control.merge([no * 100, result]).output
        assert sess.run(merged, {choice: True}) == 5
        assert sess.run(merged, {choice: False}) == 500

    def test_a_reference_goes_in_and_out(self, sess):
        variable = tf.Variable(7)
        inside = control.enter(variable._ref(), "frame", is_constant=True)
        nine = control.enter(tf.constant(9), "frame")
        with tf.control_dependencies([tf.assign(inside, nine)]):
            out = control.exit(tf.identity(inside))
        sess.run(variable.initializer)
        assert sess.run(out) == 9

    def test_the_graph_may_be_walked(self, sess):
        result, merge = counting_loop(tf.placeholder_with_default(10, []))
        back = merge.inputs[1]
        assert back.op.type == "NextIteration"
        assert merge in back.consumers()
        assert tf.gradients(result, tf.constant(1.0)) == [None]

    def test_no_gradient_through_a_loop(self, sess):
        x = tf.constant(2.0)
        start = control.enter(x, "frame")
        merged = control.merge([start, start]).output
        leaves, stays = control.switch(merged, control.loop_cond(merged < 100.0))
        merged.op._update_input(1, control.next_iteration(stays * stays))
        with pytest.raises(LookupError, match="No gradient defined"):
            tf.gradients(control.exit(leaves), x)

    def test_an_infinite_loop_is_stopped(self, sess):
        result, _ = counting_loop(tf.placeholder_with_default(10, []), 0)
        with pytest.raises(tf.errors.DeadlineExceededError):
            sess.run(result, options=tf.RunOptions(timeout_in_ms=20))
        assert sess.run(tf.constant(3)) == 3


class TestBadInput:
    def test_only_a_merge_takes_other_inputs(self, sess):
        x = tf.constant(1)
        with pytest.raises(TypeError, match="only the inputs of a Merge"):
            tf.identity(x).op._update_input(0, x)

    def test_another_dtype(self, sess):
        merged = control.merge([tf.constant(1), tf.constant(2)]).output
        with pytest.raises(TypeError, match="another one"):
            merged.op._update_input(1, tf.constant(1.0))

    def test_inputs_from_different_frames(self, sess):
        inside = control.enter(tf.constant(1), "one")
        other = control.enter(tf.placeholder_with_default(2, []), "two")
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="has inputs from different frames"
        ):
            sess.run(control.exit(inside + other))

    def test_none_cannot_be_merged(self, sess):
        with pytest.raises(ValueError, match="None"):
            control.merge([tf.constant(1), None])

    def test_partial_runs_have_no_primitives(self, sess):
        no, yes = control.switch(tf.constant(1), tf.constant(True))
        with pytest.raises(tf.errors.InvalidArgumentError, match="in parts"):
            sess.partial_run_setup([control.merge([no, yes]).output])


class TestGraphDefs:
    def test_a_loop_comes_back(self, sess):
        result, merge = counting_loop(tf.placeholder_with_default(10, []), 4)
        definition = tf.get_default_graph().as_graph_def()
        with tf.Graph().as_default(), tf.Session() as imported:
            names = [result.name, merge.name]
            actual, merged = tf.import_graph_def(definition, return_elements=names, name="")
            assert imported.run(actual) == sess.run(result) == 12
            assert merged.inputs[1].op.type == "NextIteration"

    def test_other_cycles_are_errors(self, sess):
        definition = tf.GraphDef()
        for name, source in (("a", "b"), ("b", "a")):
            node = definition.node.add(name=name, op="Identity")
            node.input.append(source)
            node.attr["T"].type = tf.float32.as_datatype_enum
        with tf.Graph().as_default(), pytest.raises(ValueError, match="cycle"):
            tf.import_graph_def(definition)

    def test_references(self, sess):
        variable = tf.Variable(1)
        inside = control.enter(variable._ref(), "frame")
        merged = control.merge([inside, inside]).output
        leaves, stays = control.switch(merged, control.loop_cond(tf.identity(merged) < 5))
        with tf.control_dependencies([tf.assign_add(stays, 1)]):
            forwarded = same(stays)
        merged.op._update_input(1, control.next_iteration(forwarded))
        out = control.exit(leaves)
        sess.run(variable.initializer)
        assert sess.run(tf.identity(out)) == 5
        types = {node.op for node in tf.get_default_graph().as_graph_def().node}
        assert {"RefEnter", "RefMerge", "RefSwitch", "RefNextIteration", "RefExit"} <= types


def test_abort_ends_the_process():
    program = (
        "import thalweg as tf\n"
        "node = tf.control.abort('enough', exit_without_error={})\n"
        "tf.Session().run(node)\n"
        "raise SystemExit(3)\n"
    )
    plain = subprocess.run([sys.executable, "-c", program.format(True)], check=False)
    assert plain.returncode == 0
    hard = subprocess.run(
        [sys.executable, "-c", program.format(False)], check=False, stderr=subprocess.PIPE
    )
    assert hard.returncode == -signal.SIGABRT
    assert b"enough" in hard.stderr


def test_abort_is_planned(sess):
    assert "Abort" in str(sess.plan(control.abort()))


def test_plans_show_the_nodes(sess):
    result, _ = counting_loop(tf.placeholder_with_default(10, []))
    assert "the executor runs its nodes one by one" in str(sess.plan(result))
    assert sess.run(result) == 10


class TestExport:
    """Conditionals and loops are written to a GraphDef in the form other systems know."""

    def check(self, sess, fetches, feeds):
        """Values before and after the way through a GraphDef."""
        definition = tf.get_default_graph().as_graph_def()
        types = {node.op for node in definition.node}
        assert not types & {"If", "Case", "While", "Argument", "LoopTrace", "BranchTrace"}
        expected = sess.run(fetches, feeds)
        named = {tensor.name: value for tensor, value in feeds.items()}
        with tf.Graph().as_default(), tf.Session() as imported:
            tf.import_graph_def(definition, name="")
            result = imported.run([tensor.name for tensor in fetches], named)
        for one, other in zip(expected, result, strict=True):
            assert one.tolist() == other.tolist()
        return types

    def test_conditionals(self, sess):
        x, at = tf.placeholder(tf.float32, [2]), tf.placeholder(tf.int32, [])
        first = tf.cond(at > 0, lambda: (x * 2.0, tf.constant(1)), lambda: (x, at))
        second = tf.switch_case(at, [lambda: x, lambda: x + 1.0, lambda: tf.zeros([2])])
        (gradient,) = tf.gradients(second, x)
        for index in (-1, 0, 1, 2):
            feeds = {x: [1.0, 2.0], at: index}
            types = self.check(sess, [*first, second, gradient], feeds)
        assert {"Switch", "Merge"} <= types

    def test_loops(self, sess):
        x, n = tf.placeholder(tf.float32, []), tf.placeholder(tf.int32, [])

        def outer(i, y):
            _, z = tf.while_loop(lambda j, _: j < i, lambda j, z: (j + 1, z * x), [0, y])
            return i + 1, tf.cond(z > 3.0, lambda: z * 0.5, lambda: z + x)

        _, y = tf.while_loop(lambda i, _: i < n, outer, [0, x])
        (gradient,) = tf.gradients(y, x)
        for count in (0, 1, 4):
            types = self.check(sess, [y, gradient], {x: 1.5, n: count})
        assert {"Enter", "Exit", "NextIteration", "LoopCond"} <= types

    def test_variables(self, sess):
        variable = tf.Variable(0, name="counter")

        def body(i):
            with tf.control_dependencies([tf.assign_add(variable, i)]):
                return i + 1

        loop = tf.while_loop(lambda i: i < 5, body, [0])
        definition = tf.get_default_graph().as_graph_def()
        with tf.Graph().as_default(), tf.Session() as imported:
            tf.import_graph_def(definition, name="")
            imported.run(variable.initializer.name)
            assert imported.run(loop.name) == 5
            assert imported.run("counter:0") == 10

    def test_a_single_node_can_be_shown(self, sess):
        loop = tf.while_loop(lambda i: i < 5, lambda i: i + 1, [0])
        assert loop.op.node_def.op == "While"

    def test_only_new_nodes(self, sess):
        tf.while_loop(lambda i: i < 5, lambda i: i + 1, [0])
        version = tf.get_default_graph().version
        tf.constant(1, name="new")
        definition = tf.get_default_graph().as_graph_def(from_version=version)
        assert [node.name for node in definition.node] == ["new"]
