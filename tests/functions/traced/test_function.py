"""`tf.function`: when it traces, what it says of that, and that calls do what the code says."""

import enum
import functools
import gc
import operator
import threading
import weakref

import numpy as np
import pytest

import thalweg as tf
from thalweg.functions.traced.function_cache import MAX_TRACES
from thalweg.platform import tf_logging


@pytest.fixture(params=["graph", "eager"])
def mode(request):
    """Graph code with a session, or eager code; `value` evaluates a tensor."""
    if request.param == "eager":
        with tf.eager_mode():
            yield lambda result: tf.nest.map_structure(lambda t: t.numpy(), result)
        return
    with tf.Graph().as_default(), tf.Session() as session:

        def value(result):
            session.run(tf.global_variables_initializer())
            return session.run(result)

        yield value


@pytest.fixture
def eager():
    with tf.eager_mode():
        yield


def counted(function, **options):
    """A traced function, and the list of what it was traced with."""
    seen = []

    @functools.wraps(function)
    def inner(*args, **kwargs):
        seen.append(args)
        return function(*args, **kwargs)

    return tf.function(inner, **options), seen


@pytest.fixture
def warnings(monkeypatch):
    result = []
    monkeypatch.setattr(tf_logging, "warning", lambda text, *args: result.append(text % args))
    return result


# Results


def test_a_call_gives_what_the_function_computes(mode):
    double = tf.function(lambda x: 2 * x + 1)
    assert mode(double(tf.constant([1.0, 2.0]))).tolist() == [3, 5]


def test_decorator_with_and_without_arguments(mode):
    @tf.function
    def plain(x):
        """Doubles."""
        return 2 * x

    @tf.function(autograph=False, experimental_relax_shapes=True, name="other")
    def given(x):
        return 3 * x

    assert plain.__doc__ == "Doubles." and plain.__name__ == "plain"
    assert given.name == "other"
    assert mode(plain(tf.constant(2))) == 4 and mode(given(tf.constant(2))) == 6


def test_partials_are_traced(mode):
    add = tf.function(functools.partial(lambda x, y: x + y, y=10))
    assert mode(add(tf.constant(1))) == 11


def test_nested_structures_come_back_as_they_are(mode):
    @tf.function
    def nested(pair, named):
        return {"sum": pair[0] + pair[1], "both": (named["x"], [pair[0]])}

    result = mode(nested((tf.constant(1), tf.constant(2)), {"x": tf.constant(3)}))
    assert result == {"sum": 3, "both": (3, [1])}


def test_python_values_are_returned_as_they_are(eager):
    marker = object()
    result = tf.function(lambda x: (x + 1, None, "text", 7, marker))(tf.constant(1))
    assert int(result[0]) == 2 and result[1:] == (None, "text", 7, marker)


def test_composites_come_back(mode):
    @tf.function
    def slices(x):
        return tf.IndexedSlices(x, tf.constant([0, 2]))

    result = slices(tf.constant([1.0, 2.0]))
    assert isinstance(result, tf.IndexedSlices)
    assert mode(result.values).tolist() == [1, 2] and mode(result.indices).tolist() == [0, 2]


def test_sparse_tensors_go_in_and_out(mode):
    sparse = tf.SparseTensor([[0], [2]], [1.0, 2.0], [3])
    result = tf.function(lambda s: tf.SparseTensor(s.indices, s.values * 2, s.dense_shape))(sparse)
    assert mode(result.values).tolist() == [2, 4]


# Retracing


def test_one_trace_for_one_dtype_and_shape(mode):
    double, seen = counted(lambda x: 2 * x)
    for value in (1.0, 2.0, 3.0):
        double(tf.constant([value]))
    assert len(seen) == 1
    double(tf.constant([1]))
    assert len(seen) == 2


def test_arrays_and_tensors_share_a_trace(eager):
    double, seen = counted(lambda x: 2 * x)
    assert double(np.ones(2, np.float32)).numpy().tolist() == [2, 2]
    assert double(tf.constant([3.0, 4.0])).numpy().tolist() == [6, 8]
    assert len(seen) == 1


def test_a_changing_batch_is_traced_twice(eager):
    double, seen = counted(lambda x: 2 * x)
    for size in (2, 3, 4, 5, 2):
        assert double(tf.ones([size, 3])).shape == (size, 3)
    assert [tuple(x.shape.as_list()) for (x,) in seen] == [(2, 3), (None, 3)]


def test_shapes_stay_exact_where_that_is_asked(eager):
    double, seen = counted(lambda x: 2 * x, experimental_relax_shapes=False)
    for size in (2, 3, 4):
        double(tf.ones([size]))
    assert [x.shape.as_list() for (x,) in seen] == [[2], [3], [4]]


@pytest.mark.parametrize("relaxes", [None, True])
def test_shapes_of_calls_in_a_graph_stay_exact(relaxes):
    with tf.Graph().as_default():
        double = tf.function(lambda x: 2 * x, experimental_relax_shapes=relaxes)
        shapes = [double(tf.zeros([size, 3])).shape.as_list() for size in (2, 5)]
    assert shapes == [[2, 3], [None if relaxes else 5, 3]]


def test_a_function_that_needs_its_sizes_gets_them(eager):
    halves = tf.function(lambda x: tf.reshape(x, [2, int(x.shape[0]) // 2]))
    assert [halves(tf.ones([size])).shape.as_list() for size in (2, 4, 6)] == [
        [2, 1],
        [2, 2],
        [2, 3],
    ]


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@pytest.mark.parametrize(
    "one, other",
    [(1, 2), (1, 1.0), (1, True), ("a", "b"), (None, 0), (0.0, -0.0), (Colour.RED, Colour.BLUE)],
)
def test_python_values_count_by_value_and_type(eager, one, other):
    function, seen = counted(lambda x, option: x)
    for option in (one, other, one, other):
        function(tf.constant(1.0), option)
    assert len(seen) == 2


def test_objects_count_by_identity_and_are_not_held(eager):
    class Thing:
        pass

    function, seen = counted(lambda x, thing: x)
    first, second = Thing(), Thing()
    for thing in (first, second, first):
        function(tf.constant(1.0), thing)
    assert len(seen) == 2
    gone = weakref.ref(first)
    seen.clear()
    del first, thing
    gc.collect()
    assert gone() is None


def test_names_and_positions_are_one(eager):
    function, seen = counted(lambda x, y=2: x * y)
    one = tf.constant(1.0)
    results = [function(one), function(one, 2), function(one, y=2), function(x=one)]
    assert [float(r) for r in results] == [2, 2, 2, 2] and len(seen) == 1


def test_the_cache_is_bounded_and_forgets_the_least_used(eager):
    function, seen = counted(lambda x, number: x + number)
    one = tf.constant(1.0)
    for number in range(MAX_TRACES + 5):
        function(one, number)
        function(one, 0)
    assert len(seen) == MAX_TRACES + 5  # 0 was used all the time
    assert function.explain().kept == MAX_TRACES
    function(one, 1)
    assert len(seen) == MAX_TRACES + 6


# Reports


def test_a_retrace_says_what_changed(eager):
    function = tf.function(lambda x, scale: x * scale, experimental_relax_shapes=False)
    function(tf.ones([32, 10]), 2.0)
    function(tf.ones([33, 10]), 2.0)
    function(tf.ones([33, 10]), 3.0)
    function(tf.ones([33, 10], tf.float64), 3.0)
    reasons = [trace.reasons for trace in function.explain().traces]
    assert reasons == [
        (),
        ("argument 0 'x': shape (32, 10) → (33, 10)",),
        ("argument 1 'scale': value '2.0' → '3.0'",),
        ("argument 0 'x': dtype float32 → float64",),
    ]
    assert "shape (32, 10) → (33, 10)" in str(function.explain())
    assert "test_function.py" in str(function.explain())


def test_a_storm_of_retraces_warns_once_with_the_argument(eager, warnings):
    function = tf.function(lambda x, rate: x * rate)
    for step in range(8):
        function(tf.constant(1.0), step)
    assert len(warnings) == 1
    assert "argument 1 'rate': value 3 → 4" in warnings[0] and "test_function.py" in warnings[0]


def test_a_steady_function_does_not_warn(eager, warnings):
    function = tf.function(lambda x, rate: x * rate)
    for step in range(6):
        for _ in range(10):
            function(tf.constant(1.0), step)
    assert warnings == []


# Signatures


def test_an_input_signature_makes_one_trace(eager):
    function, seen = counted(lambda x: x + 1, input_signature=[tf.TensorSpec([None], tf.float32)])
    for value in ([1.0], [1.0, 2.0], np.ones(3, np.float32)):
        function(value)
    assert len(seen) == 1
    assert function.input_signature == (tf.TensorSpec([None], tf.float32),)
    with pytest.raises(ValueError, match=r"argument 'x' must be like TensorSpec"):
        function(tf.ones([2, 2]))
    with pytest.raises(TypeError, match="TensorSpec"):
        tf.function(lambda x: x, input_signature=[3])


def test_an_input_signature_holds_for_variadic_arguments(mode):
    numbers = [tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.float32)]
    total, seen = counted(lambda *values: tf.add_n([*map(tf.reduce_sum, values)]))
    total = tf.function(total.python_function, input_signature=numbers)
    for size in (2, 3):
        assert mode(total(np.ones(size, np.float32), 4.0)) == size + 4
    assert len(seen) == 1
    first = tf.function(operator.itemgetter(0), input_signature=numbers[:1])  # has no signature
    assert mode(first(np.array([5.0, 6.0], np.float32))) == 5.0
    rest = tf.function(lambda x, *flags: x * len(flags), input_signature=numbers[1:])
    assert mode(rest(3.0, "a", "b")) == 6.0
    with pytest.raises(TypeError, match=r"argument 'values' must be like .* sequence length"):
        total(np.ones(2, np.float32))
    with pytest.raises(TypeError, match="takes no tensors besides"):
        rest(3.0, tf.constant(1.0))
    with pytest.raises(TypeError, match="cannot take the 2 specified"):
        tf.function(lambda x: x, input_signature=numbers)(1.0)


def test_lists_count_by_dtype_shape_and_size(eager):
    function, seen = counted(lambda array: array.stack())
    for size in (2, 2, 3):
        for values in (np.ones(size, np.float32), np.ones(size, np.int32), np.ones((size, 2))):
            array = tf.TensorArray(values.dtype, size).unstack(values)
            stacked = function(array).numpy()
            assert stacked.dtype == values.dtype and stacked.tolist() == values.tolist()
    assert len(seen) == 6


def test_concrete_functions_show_themselves_and_run(mode):
    function = tf.function(lambda x, k: {"y": x * k})
    concrete = function.get_concrete_function(tf.TensorSpec([None], tf.float32), 3)
    assert [t.dtype for t in concrete.inputs] == [tf.float32]
    assert concrete.graph.get_operations()[0].type == "Argument"
    assert concrete.outputs == [concrete.structured_outputs["y"]]
    assert concrete.structured_input_signature == ((tf.TensorSpec([None], tf.float32), 3), {})
    assert mode(concrete(tf.constant([1.0, 2.0]))["y"]).tolist() == [3, 6]
    with pytest.raises(TypeError, match="must be like"):
        concrete(tf.constant([1]))
    with pytest.raises(TypeError, match="missing argument 'x'"):
        concrete()


# Variables and effects


def test_variables_are_made_once_and_held(mode):
    held = []

    @tf.function
    def scaled(x):
        if not held:
            held.append(tf.Variable(tf.zeros([2]) + 3.0))
        return held[0] * x

    assert mode(scaled(tf.constant([1.0, 2.0]))).tolist() == [3, 6]
    assert mode(scaled(tf.constant([[1.0, 2.0]]))).tolist() == [[3, 6]]
    assert scaled.variables == held


def test_layers_share_their_variables_between_traces(mode):
    layer = tf.function(lambda x: tf.layers.dense(x, 3))
    shapes = [layer(tf.ones([size, 4])).shape.as_list() for size in (2, 5)]
    assert shapes == [[2, 3], [5, 3]] or shapes == [[2, 3], [None, 3]]
    assert len(layer.variables) == 2


def test_a_variable_on_a_later_call_is_refused_at_its_line(eager):
    function = tf.function(lambda x: x + tf.Variable(1.0))
    function(tf.constant(1.0))
    with pytest.raises(ValueError, match=r"later call \(at .*test_function.py:\d+\)"):
        function(tf.constant([1.0]))


def test_an_initial_value_may_not_depend_on_an_argument(eager):
    with pytest.raises(ValueError, match="depends on an argument"):
        tf.function(lambda x: tf.Variable(x * 2.0) + x)(tf.constant(1.0))


def test_reads_see_the_writes_before_them(mode):
    variable = tf.Variable(1.0)

    @tf.function
    def reads():
        first = variable + 0.0
        variable.assign_add(10.0)
        second = variable + 0.0
        variable.assign(5.0)
        return first, second, variable

    assert mode(reads()) == (1, 11, 5)


def test_effects_happen_in_order_though_nothing_needs_them(mode):
    seen = []

    def note(value):
        seen.append(int(value))
        return np.int32(0)

    @tf.function
    def effects(x):
        for number in range(4):
            tf.py_func(note, [x + number], tf.int32)
        return x

    mode(effects(tf.constant(10)))
    assert seen == [10, 11, 12, 13]


def test_a_failed_assertion_keeps_later_writes_away(eager):
    variable = tf.Variable(1.0)

    @tf.function
    def guarded(x):
        tf.Assert(x > 0, [x])
        variable.assign(x)

    guarded(tf.constant(2.0))
    with pytest.raises(tf.errors.InvalidArgumentError):
        guarded(tf.constant(-2.0))
    assert float(variable) == 2


def test_a_function_of_effects_gives_a_node_to_run():
    with tf.Graph().as_default(), tf.Session() as session:
        variable = tf.Variable(1.0)
        node = tf.function(lambda: variable.assign_add(1.0) and None)
        with pytest.raises(TypeError, match="Python bool"):
            node()

        @tf.function
        def grow():
            variable.assign_add(1.0)

        step = grow()
        session.run(variable.initializer)
        session.run(step)
        session.run(step)
        assert session.run(variable) == 3


def test_recorded_code_around_a_call_keeps_its_order(eager):
    variable = tf.Variable(1.0)
    grow = tf.function(lambda: variable.assign_add(1.0))
    before = variable + 0.0
    grow()
    variable.assign(variable * 10.0)
    grow()
    assert float(before) == 1 and float(variable) == 21


def test_random_numbers_go_on(eager):
    draw = tf.function(lambda: tf.random_uniform([4], seed=7))
    assert draw().numpy().tolist() != draw().numpy().tolist()


# Nesting, gradients


def test_functions_nest(mode):
    inner, seen = counted(lambda x: x * 2)
    outer = tf.function(lambda x: inner(x) + inner(x + 1))
    assert mode(outer(tf.constant(3))) == 14
    assert len(seen) == 1


def test_what_is_around_is_captured(mode):
    around = tf.constant([1.0, 2.0]) * 3.0
    assert mode(tf.function(lambda x: x + around)(tf.constant(1.0))).tolist() == [4, 7]


def test_gradients_go_through_a_call():
    with tf.Graph().as_default(), tf.Session() as session:
        weight, x = tf.Variable([1.0, 2.0]), tf.placeholder(tf.float32, [2])
        loss = tf.function(lambda x: tf.reduce_sum((weight * x) ** 2))(x)
        found = tf.gradients(loss, [weight, x])
        session.run(weight.initializer)
        by_weight, by_x = session.run(found, {x: [3.0, 4.0]})
        assert by_weight.tolist() == [18, 64] and by_x.tolist() == [6, 32]


def test_gradients_inside_a_function(mode):
    weight = tf.Variable([1.0, 2.0])
    slope = tf.function(lambda x: tf.gradients(tf.reduce_sum((weight * x) ** 2), [weight, x]))
    by_weight, by_x = mode(slope(tf.constant([3.0, 4.0])))
    assert by_weight.tolist() == [18, 64] and by_x.tolist() == [6, 32]


def test_a_tape_differentiates_a_call(eager):
    weight, x = tf.Variable([1.0, 2.0]), tf.constant([3.0, 4.0])
    loss = tf.function(lambda x: tf.reduce_sum((weight * x) ** 2))
    for _ in range(2):
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = loss(x)
        by_weight, by_x = tape.gradient(value, [weight, x])
        assert by_weight.numpy().tolist() == [18, 64] and by_x.numpy().tolist() == [6, 32]


def test_arguments_that_are_still_to_be_computed(eager):
    double = tf.function(lambda x: x * 2)
    assert double(tf.constant([1.0]) + 1.0).numpy().tolist() == [4]


# Methods


class Model:
    def __init__(self, weight):
        self.weight = weight
        self.traced = 0

    @tf.function
    def __call__(self, x):
        self.traced += 1
        return x * self.weight


def test_each_instance_has_traces_of_its_own(eager):
    models = [Model(2.0), Model(3.0)]
    for _ in range(2):
        assert [float(model(tf.constant(5.0))) for model in models] == [10, 15]
    assert [model.traced for model in models] == [1, 1]


class Equal(Model):
    """All instances are equal, whatever their weights."""

    def __eq__(self, other):
        return isinstance(other, Equal)

    def __hash__(self):
        return 1


class Unhashable(Equal):
    __hash__ = None


class Slotted:
    """An instance that cannot be referenced weakly."""

    __slots__ = ("traced", "weight")
    __init__, __call__ = Model.__init__, Model.__call__


@pytest.mark.parametrize("kind", [Equal, Unhashable, Slotted])
def test_instances_have_traces_by_identity(eager, kind):
    models = [kind(2.0), kind(3.0)]
    for _ in range(2):
        assert [float(model(tf.constant(5.0))) for model in models] == [10, 15]
    assert [model.traced for model in models] == [1, 1]
    for weight in (4.0, 5.0, 6.0):  # may have the memory of the one before
        assert float(kind(weight)(tf.constant(5.0))) == 5 * weight


@pytest.mark.parametrize("kind", [Model, Equal, Unhashable])
def test_the_traces_of_an_instance_go_with_it(eager, kind):
    function = vars(Model)["__call__"]
    before, model = len(function._bound), kind(2.0)
    model(tf.constant(5.0))
    assert len(function._bound) == before + 1
    del model
    gc.collect()
    assert len(function._bound) == before


def test_instances_are_held_weakly(eager):
    model = Model(2.0)
    model(tf.constant(1.0))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


# Threads, errors


def test_threads_share_one_trace():
    double, seen = counted(lambda x: 2 * x)
    results, start = [], threading.Barrier(4)

    def work(number):
        with tf.eager_mode():
            start.wait()
            for _ in range(20):
                results.append(float(double(tf.constant(float(number)))) == 2 * number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 80 and all(results) and len(seen) == 1


def test_recursion_over_python_values_ends(eager):
    @tf.function
    def power(x, n):
        return x if n == 1 else x * power(x, n - 1)

    assert float(power(tf.constant(2.0), 5)) == 32


def test_recursion_that_never_ends_says_so(eager):
    @tf.function
    def forever(x):
        return forever(x)

    @tf.function
    def deeper(x, n):
        return deeper(x, n + 1)

    with pytest.raises(RecursionError, match="calls itself"):
        forever(tf.constant(1.0))
    with pytest.raises(RecursionError, match="must reach an end"):
        deeper(tf.constant(1.0), 0)


def branching(x):
    if x > 0 and x < 5:
        return x
    return -x


def looping(x):
    while x < 3:
        x = x + 1
    return x


def visiting(x):
    return [row + 1 for row in tf.stack([x, x])]


@pytest.mark.parametrize(
    "function, advice",
    [
        (branching, r"tf.cond\(tf.logical_and\(x > 0, x < 5\), true_fn, false_fn\)"),
        (looping, r"tf.while_loop\(lambda \*loop_vars: x < 3, body, loop_vars\)"),
        (visiting, r"tf.map_fn\(lambda row: ..., tf.stack\(\[x, x\]\)\)"),
    ],
)
def test_python_control_flow_on_a_tensor_shows_what_to_write(eager, function, advice):
    with pytest.raises(TypeError, match=advice) as caught:
        tf.function(function)(tf.constant(1.0))
    assert "test_function.py:" in str(caught.value)


def test_wrong_arguments_are_pythons_own_error(eager):
    with pytest.raises(TypeError, match="missing a required argument: 'y'"):
        tf.function(lambda x, y: x)(tf.constant(1.0))


def test_a_built_in_function_without_a_signature_takes_keywords(mode):
    pairs = tf.function(dict)
    result = mode(pairs([("x", tf.constant(1.0))], y=tf.constant(2.0)))
    assert {key: float(value) for key, value in result.items()} == {"x": 1.0, "y": 2.0}
    assert "dict(*args, **kwargs)" in repr(pairs)
