"""get_variable and variable_scope: names, sharing, defaults, custom getters."""

import pytest

import thalweg as tf
from thalweg.variables.scope import pure_variable_scope


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def test_names_come_from_variable_scopes_not_name_scopes():
    with tf.variable_scope("a"), tf.name_scope("ignored"):
        w = tf.get_variable("w", [2])
        assert (w * 1.0).op.name.startswith("a/ignored/")
    assert w.name == "a/w:0"
    with tf.variable_scope("a"), tf.variable_scope("b"):
        assert tf.get_variable("w", [2]).name == "a/b/w:0"


def test_reuse():
    with tf.variable_scope("a"):
        w = tf.get_variable("w", [2])
        with pytest.raises(ValueError, match=rf"a/w already exists(.|\n)*{__file__}:"):
            tf.get_variable("w", [2])
    with tf.variable_scope("a", reuse=True):
        assert tf.get_variable("w", [2]) is w
        with pytest.raises(ValueError, match="a/new does not exist"):
            tf.get_variable("new", [2])
        with tf.variable_scope("inner", reuse=False):
            assert tf.get_variable_scope().reuse is True
    with tf.variable_scope("a", reuse=tf.AUTO_REUSE):
        assert tf.get_variable("w") is w
        assert tf.get_variable("new", [1]) is tf.get_variable("new", [1])
    with tf.variable_scope("a") as scope:
        scope.reuse_variables()
        assert tf.get_variable("w") is w
    with tf.variable_scope(scope, reuse=False):
        assert tf.get_variable_scope().reuse is False


def test_programs_end_the_sharing_of_a_scope_by_its_private_name():
    w = tf.get_variable("w", [2])
    scope = tf.get_variable_scope()
    scope.reuse_variables()
    assert tf.get_variable("w", [2]) is w
    scope._reuse = None
    assert not scope.reuse
    assert tf.get_variable("other", [2]).name == "other:0"


def test_shared_variables_must_fit():
    with tf.variable_scope("a", reuse=tf.AUTO_REUSE):
        tf.get_variable("w", [2])
        with pytest.raises(ValueError, match=r"Trying to share variable a/w.*shape \(3,\)"):
            tf.get_variable("w", [3])
        with pytest.raises(ValueError, match=r"Trying to share variable a/w.*dtype int32"):
            tf.get_variable("w", [2], tf.int32)


def test_wrong_requests():
    with pytest.raises(ValueError, match="must be fully defined"):
        tf.get_variable("w")
    with pytest.raises(ValueError, match="do not specify shape"):
        tf.get_variable("w", [1], initializer=tf.constant([1.0]))
    with pytest.raises(ValueError, match="don't match"):
        tf.get_variable("w", dtype=tf.int32, initializer=tf.constant([1.0]))
    with pytest.raises(TypeError, match="name_or_scope is required"):
        tf.variable_scope(None)
    with pytest.raises(TypeError, match="must be a string or VariableScope"):
        tf.variable_scope(3)
    with pytest.raises(ValueError, match="reuse=True cannot be used"):
        tf.variable_scope(None, "default", reuse=True)


def test_default_names_are_unique():
    names = []
    for _ in range(3):
        with tf.variable_scope(None, "layer"):
            names.append(tf.get_variable("w", [1]).op.name)
    assert names == ["layer/w", "layer_1/w", "layer_2/w"]
    with tf.variable_scope("layer"), pytest.raises(ValueError, match="already exists"):
        tf.get_variable("w", [1])


def test_variables_that_differ_by_case_have_other_names():
    names = [tf.get_variable(name, [1]).op.name for name in ("W", "w")]
    assert names == ["W", "w_1"]
    assert [tf.Variable(0.0, name=name).op.name for name in ("w", "B", "b")] == ["w_2", "B", "b_1"]
    with tf.variable_scope(None, "Layer"):
        names.append(tf.get_variable("w", [1]).op.name)
    with tf.variable_scope(None, "layer") as scope:
        names.append(tf.get_variable("w", [1]).op.name)
        assert (scope.name, scope.original_name_scope) == ("layer", "layer_1/")
    assert names[2:] == ["Layer/w", "layer/w_1"]


def test_reentering_by_object_keeps_the_name_and_opens_a_new_name_scope():
    with tf.variable_scope("a") as scope:
        assert scope.original_name_scope == "a/"
    with tf.variable_scope("other"), tf.variable_scope(scope) as again:
        assert tf.get_variable("w", [1]).op.name == "a/w"
        assert tf.no_op().name == "other/a/NoOp"
        assert again.original_name_scope == "a/"
    with tf.variable_scope(scope, auxiliary_name_scope=False):
        assert tf.no_op().name == "NoOp"


def test_defaults_are_inherited():
    with (
        tf.variable_scope(
            "a",
            initializer=tf.constant_initializer(3.0),
            regularizer=lambda w: tf.reduce_sum(w.value()),
            dtype=tf.float64,
            caching_device="/device:CPU:0",
        ),
        tf.variable_scope("b"),
    ):
        w = tf.get_variable("w", [2])
        tf.get_variable("x", [2], regularizer=tf.no_regularizer)
    assert w.dtype.base_dtype == tf.float64
    assert w.value().device == "/device:CPU:0"
    (loss,) = tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)
    assert loss.op.name == "a/b/w/Regularizer/Sum"
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(loss) == 6.0


def test_default_initializers():
    assert tf.get_variable("w", [2]).initial_value.dtype == tf.float32
    flags = tf.get_variable("flags", [2], tf.bool)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(flags).tolist() == [False, False]
    with pytest.raises(ValueError, match="initializer is required"):
        tf.get_variable("names", [2], tf.string)
    free = tf.get_variable("free", initializer=lambda: tf.ones([4]))
    assert free.shape.as_list() == [4]


def test_custom_getters_nest():
    calls = []

    def outer(getter, name, *args, **kwargs):
        calls.append(f"outer {name}")
        return getter(name, *args, **kwargs)

    def inner(getter, name, *args, **kwargs):
        calls.append(f"inner {name}")
        return getter(f"{name}_changed", *args, **kwargs)

    with tf.variable_scope("a", custom_getter=outer), tf.variable_scope("b", custom_getter=inner):
        w = tf.get_variable("w", [1])
    assert w.op.name == "a/b/w_changed"
    assert calls == ["inner a/b/w", "outer a/b/w_changed"]
    with pytest.raises(ValueError, match="not callable"):
        tf.get_variable("v", [1], custom_getter=3)


def test_local_variables():
    w = tf.get_local_variable("w", [1])
    assert tf.local_variables() == [w]
    assert tf.global_variables() == []
    assert tf.trainable_variables() == []


def test_scope_collections():
    with tf.variable_scope("a") as scope:
        w = tf.get_variable("w", [1])
        tf.get_variable("x", [1], trainable=False)
    tf.get_variable("ab", [1])
    assert scope.trainable_variables() == [w]
    assert len(scope.global_variables()) == 2
    assert scope.local_variables() == []


def test_old_argument_order():
    with tf.variable_op_scope([tf.constant(1.0)], None, "old"):
        assert tf.get_variable("w", [1]).op.name == "old/w"


def test_templates_share_variables():
    def scale(x):
        return x * tf.get_variable("w", [], initializer=tf.ones_initializer())

    template = tf.make_template("scale", scale)
    assert template.variable_scope is None
    template(tf.constant(1.0))
    template(tf.constant(2.0))
    assert [v.op.name for v in tf.global_variables()] == ["scale/w"]
    assert template.variable_scope_name == "scale"
    tf.make_template("scale", scale)(tf.constant(1.0))
    assert tf.global_variables()[-1].op.name == "scale_1/w"
    assert template.trainable_variables == tf.global_variables()[:1]


def test_templates_that_make_variables_again_are_wrong():
    template = tf.make_template("bad", lambda: tf.Variable(1.0))
    template()
    with pytest.raises(ValueError, match=rf"Trainable variable created(.|\n)*{__file__}"):
        template()


def test_errors_in_templates_name_the_line_that_asked_for_them():
    def of_a_library():
        return tf.make_template("t", lambda: tf.reshape(tf.zeros([3]), [2]))

    template = of_a_library()  # the program's line
    match = r"originally defined at:(.|\n)*the program's line"
    with pytest.raises(ValueError, match=match) as info:
        template()
    assert "def test_" not in str(info.value)
    assert str(info.value).count("File ") == 2  # pytest's calls are around the use as well


def test_template_scopes_can_be_made_at_once():
    template = tf.make_template("t", lambda: tf.get_variable("w", [1]), create_scope_now_=True)
    with tf.variable_scope("elsewhere"):
        assert template().op.name == "t/w"


def test_template_scopes_made_at_once_are_of_variables_alone():
    template = tf.make_template("named", lambda: tf.zeros([1]).op.name, create_scope_now_=True)
    assert [template(), template()] == ["named/zeros", "named_1/zeros"]


def test_a_pure_scope_opens_no_name_scope():
    with tf.Graph().as_default(), tf.name_scope("names"):
        with tf.variable_scope("outer") as outer:
            tf.get_variable("v", [1])
        with pure_variable_scope(outer, reuse=True):
            assert tf.get_variable("v", [1]).op.name == "outer/v"
            assert tf.no_op().name == "names/NoOp"
        with pure_variable_scope("inner", initializer=tf.ones_initializer()) as inner:
            assert (inner.name, tf.no_op().name) == ("inner", "names/NoOp_1")
