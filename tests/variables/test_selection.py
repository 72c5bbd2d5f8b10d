"""contrib.framework's ways to make and find variables."""

import pytest

import thalweg as tf

F = tf.contrib.framework


@pytest.fixture(autouse=True)
def variables():
    with tf.Graph().as_default():
        with tf.variable_scope("a"):
            weights = F.model_variable("weights", [2])
            biases = F.variable("biases", [2], trainable=False)
        with tf.variable_scope("ab"):
            other = tf.get_variable("weights", [2])
        yield weights, biases, other


def names(found):
    return [v.op.name for v in found]


def test_kinds(variables):
    weights, biases, _ = variables
    assert F.get_model_variables() == [weights]
    assert biases not in F.get_trainable_variables()
    local = F.local_variable(0, name="count")
    assert F.get_local_variables() == [local]
    F.add_model_variable(biases)
    F.add_model_variable(biases)
    assert F.get_model_variables() == [weights, biases]
    assert tf.contrib.slim.get_model_variables is F.get_model_variables


def test_lookups(variables):
    weights, biases, other = variables
    assert F.get_variables("a/") == [weights, biases]
    assert F.get_variables(suffix="weights") == [weights, other]
    assert F.get_variables_by_suffix("s", "a/") == [weights, biases]
    assert F.get_variables_by_name("weights") == [weights, other]
    assert F.get_variables_by_name("eights") == []
    assert F.get_unique_variable("ab/weights") is other
    with pytest.raises(ValueError, match="does not exist"):
        F.get_unique_variable("weights")


def test_restoring(variables):
    weights, biases, other = variables
    assert F.get_variables_to_restore(exclude=["ab"]) == [weights, biases]
    assert F.get_variables_to_restore(include=["ab", "a/b"]) == [other, biases]


def test_filters(variables):
    kept = F.filter_variables(tf.global_variables(), ["weights"], ["ab"])
    assert names(kept) == ["a/weights"]
    assert names(F.filter_variables(tf.global_variables(), ["weights"], reg_search=False)) == []
