"""Feature columns, and the layers made of them."""

import numpy as np
import pytest

import thalweg as tf

fc = tf.feature_column


def run(tensor):
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        return session.run(tensor)


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def test_dense_columns_stand_side_by_side_in_the_order_of_their_names():
    price = fc.numeric_column("price", normalizer_fn=lambda x: x / 10)
    color = fc.categorical_column_with_vocabulary_list("color", ["red", "green"], num_oov_buckets=1)
    columns = [price, fc.indicator_column(color)]
    features = {"price": [[10.0], [20.0]], "color": [["green"], ["other"]]}
    np.testing.assert_allclose(run(fc.input_layer(features, columns)), [[0, 1, 0, 1], [0, 0, 1, 2]])


def test_buckets_are_one_hot_where_dense_and_ids_where_categorical():
    column = fc.bucketized_column(fc.numeric_column("x"), [0.0, 10.0])
    features = {"x": tf.constant([[-1.0], [0.0], [99.0]])}
    np.testing.assert_array_equal(run(column.dense(features))[:, 0], np.eye(3))
    np.testing.assert_array_equal(run(column.ids(features)).values, [0, 1, 2])


def test_embeddings_have_their_variable_in_the_columns_scope():
    column = fc.categorical_column_with_identity("id", 5)
    embedded = fc.embedding_column(column, 3, initializer=tf.ones_initializer())
    assert run(fc.input_layer({"id": [[1], [4]]}, [embedded])).shape == (2, 3)
    names = [v.op.name for v in tf.global_variables()]
    assert names == ["input_layer/id_embedding/embedding_weights"]


def test_a_linear_model_has_a_weight_for_each_id_and_a_bias():
    column = fc.categorical_column_with_hash_bucket("word", 7)
    actual = {}
    sums = fc.linear_model({"word": [["a"], ["b"]]}, [column], units=2, cols_to_vars=actual)
    np.testing.assert_array_equal(run(sums), np.zeros((2, 2)))
    assert actual[column][0].shape.as_list() == [7, 2]
    assert actual["bias"][0].op.name == "linear_model/bias_weights"


def test_crosses_hash_each_combination_to_the_ids_that_tensorflow_gives():
    column = fc.crossed_column(["a", "b"], 1000)
    ids = run(column.ids({"a": tf.constant([["x"], ["y"]]), "b": tf.constant([["p"], ["q"]])}))
    np.testing.assert_array_equal(ids.indices, [[0, 0], [1, 0]])
    np.testing.assert_array_equal(ids.values, [452, 692])


def test_ids_out_of_range_are_an_error_or_the_default():
    features = {"id": [[7]]}
    with_default = fc.categorical_column_with_identity("id", 5, default_value=0)
    assert run(with_default.ids(features)).values == [0]
    with pytest.raises(tf.errors.InvalidArgumentError):
        run(fc.categorical_column_with_identity("id", 5).ids(features))


def test_columns_say_what_to_parse():
    columns = [fc.numeric_column("x", 2), fc.categorical_column_with_hash_bucket("w", 3)]
    spec = fc.make_parse_example_spec(columns)
    assert spec == {"x": tf.FixedLenFeature((2,), tf.float32), "w": tf.VarLenFeature(tf.string)}


@pytest.mark.parametrize(
    "make",
    [
        lambda: fc.numeric_column("x", 0),
        lambda: fc.bucketized_column(fc.numeric_column("x"), [2, 1]),
        lambda: fc.crossed_column(["a"], 10),
        lambda: fc.input_layer({"x": [[1.0]]}, [fc.categorical_column_with_identity("x", 3)]),
        lambda: fc.input_layer({}, [fc.numeric_column("x")]),
    ],
)
def test_bad_columns_are_refused(make):
    with pytest.raises(ValueError, match=r"."):
        make()
