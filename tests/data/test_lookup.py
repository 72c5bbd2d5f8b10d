"""Lookup tables: lookups, initialization, saving."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import thalweg as tf
from thalweg.graph import dtypes
from thalweg.ops.state.table_state import Table

lookup = tf.contrib.lookup


@pytest.fixture(autouse=True)
def session():
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


def int64(values):
    return tf.constant(values, tf.int64)


def initialised(session):
    session.run([tf.global_variables_initializer(), tf.tables_initializer()])


# Static tables


def static(keys=("a", "b"), values=(1.5, 2.5), default=-1.0):
    return lookup.HashTable(lookup.KeyValueTensorInitializer(list(keys), list(values)), default)


def test_a_static_table(session):
    table = static()
    actual = table.lookup(tf.constant([["b", "x"], ["a", "a"]]))
    assert actual.shape == (2, 2) and actual.dtype == tf.float32
    session.run(table.initializer)
    np.testing.assert_array_equal(session.run(actual), [[2.5, -1], [1.5, 1.5]])
    assert session.run(table.lookup("b")) == 2.5
    assert session.run(table.size()) == 2
    keys, values = session.run(table.export())
    assert dict(zip(keys, values, strict=True)) == {b"a": 1.5, b"b": 2.5}


def test_sparse_keys(session):
    table = static()
    initialised(session)
    keys = tf.SparseTensor([[0, 1], [1, 0]], ["b", "a"], [2, 2])
    actual = session.run(table.lookup(keys))
    assert actual.values.tolist() == [2.5, 1.5] and actual.indices.tolist() == [[0, 1], [1, 0]]


def test_the_error_of_an_uninitialized_table_names_the_initializer(session):
    found = static().lookup(tf.constant(["a"]))
    with pytest.raises(
        tf.errors.FailedPreconditionError, match=r"tables_initializer\(\)(.|\n)*test_lookup\.py"
    ):
        session.run(found)


def test_initialized_twice(session):
    table = static()
    session.run(table.initializer)
    session.run(table.initializer)  # the same data
    fed = tf.placeholder(tf.float32, [2])
    initializer = lookup.KeyValueTensorInitializer(tf.constant(["a", "b"]), fed)
    other = lookup.HashTable(initializer, 0.0, shared_name="other")
    session.run(other.initializer, {fed: [1, 2]})
    with pytest.raises(tf.errors.FailedPreconditionError, match="different data"):
        session.run(other.initializer, {fed: [1, 3]})


def test_a_key_with_two_values(session):
    table = static(["a", "a"], [1.0, 2.0])
    with pytest.raises(tf.errors.FailedPreconditionError, match="different value for same key"):
        session.run(table.initializer)
    session.run(static(["a", "a"], [1.0, 1.0]).initializer)


def test_wrong_dtypes_and_shapes():
    with pytest.raises(TypeError, match="must be dtype string, got int32"):
        static().lookup(tf.constant([1]))
    with pytest.raises(ValueError, match="incompatible"):
        static(default=[1.0, 2.0])
    with pytest.raises(ValueError, match="incompatible"):
        lookup.KeyValueTensorInitializer(["a"], [1, 2])


def test_two_kinds_of_table_under_one_name(session):
    initializer = lookup.KeyValueTensorInitializer(["a"], [1])
    lookup.HashTable(initializer, 0, shared_name="t")
    other = lookup.MutableHashTable(tf.string, tf.float32, 0.0, shared_name="t")
    initialised(session)
    with pytest.raises(tf.errors.InvalidArgumentError, match="'t' is a HashTable of string to"):
        session.run(other.size())


# From files


@pytest.fixture
def words(tmp_path):
    path = tmp_path / "words.txt"
    path.write_bytes(b"zero\r\none\ntwo\tzwei")
    return str(path)


def test_lines_and_numbers(session, words):
    ids = lookup.index_table_from_file(words, default_value=7)
    back = lookup.index_to_string_table_from_file(words, vocab_size=2)
    initialised(session)
    assert session.run(ids.lookup(tf.constant(["one", "three"]))).tolist() == [1, 7]
    assert session.run(back.lookup(int64([0, 2]))).tolist() == [b"zero", b"UNK"]
    assert [session.run(name) for name in tf.get_collection(tf.GraphKeys.ASSET_FILEPATHS)] == [
        words.encode()
    ] * 2


def test_columns(session, tmp_path):
    path = tmp_path / "columns"
    path.write_text("a 1.5 x\nb 2.5 y\n")
    initializer = lookup.TextFileInitializer(str(path), tf.string, 2, tf.float32, 1, delimiter=" ")
    table = lookup.HashTable(initializer, 0.0)
    initialised(session)
    assert session.run(table.lookup(tf.constant(["y", "a"]))).tolist() == [2.5, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((tf.string, 0, tf.int64, 1), "Invalid number of columns in .*columns line 0"),
        ((tf.int64, 0, tf.int64, -1), "Field b'a' in line 0 of .* is not a valid int64"),
        ((tf.string, 0, tf.int64, -1, 5), "expected 5 but got 1"),
    ],
)
def test_files_of_another_format(session, tmp_path, arguments, message):
    path = tmp_path / "columns"
    path.write_text("a\n")
    table = lookup.HashTable(lookup.TextFileInitializer(str(path), *arguments), 0)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        session.run(table.initializer)


def test_a_missing_file(session, tmp_path):
    table = lookup.index_table_from_file(str(tmp_path / "none"))
    with pytest.raises(tf.errors.NotFoundError, match=r"none(.|\n)*test_lookup\.py"):
        session.run(table.initializer)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", tf.string, 0, tf.int64, 1), "Filename required"),
        (("f", tf.string, -3, tf.int64, 1), "Invalid key index"),
        (("f", tf.string, -1, tf.int64, 1), "int64: key_dtype cannot be string"),
        (("f", tf.float32, -2, tf.int64, 1), "key_dtype cannot be float32"),
        (("f", tf.string, -2, tf.int64, -1, 0), "vocab_size"),
    ],
)
def test_arguments_of_files(arguments, message):
    with pytest.raises(ValueError, match=message):
        lookup.TextFileInitializer(*arguments)


# Vocabularies


def test_out_of_vocabulary_words(session):
    table = lookup.index_table_from_tensor(["a", "b"], num_oov_buckets=3)
    found = table.lookup(tf.constant(["b", "c", "d", "e", "a"]))
    initialised(session)
    ids = session.run(found)
    assert ids[[0, 4]].tolist() == [1, 0] and all(2 <= i < 5 for i in ids[1:4])
    assert session.run(table.size()) == 5
    expected = session.run(tf.string_to_hash_bucket_fast(["c", "d", "e"], 3)) + 2
    np.testing.assert_array_equal(ids[1:4], expected)


def test_vocabularies_of_numbers(session):
    table = lookup.index_table_from_tensor([30, 10], dtype=tf.int32, num_oov_buckets=1)
    initialised(session)
    assert session.run(table.lookup(tf.constant([10, 30, 5]))).tolist() == [1, 0, 2]


def test_only_buckets(session):
    strong = lookup.StrongHashSpec([1, 2])
    table = lookup.IdTableWithHashBuckets(None, 10, strong)
    expected = tf.string_to_hash_bucket_strong(["x"], 10, [1, 2])
    assert session.run(table.lookup(tf.constant(["x"]))) == session.run(expected)
    session.run(table.initializer)


def test_a_static_vocabulary(session):
    initializer = tf.lookup.KeyValueTensorInitializer(["a"], int64([0]))
    table = tf.lookup.StaticVocabularyTable(initializer, 1)
    initialised(session)
    assert session.run(table.lookup(tf.constant(["z", "a"]))).tolist() == [1, 0]


def test_older_names(session):
    ids = lookup.string_to_index(tf.constant(["b"]), ["a", "b"])
    words = lookup.index_to_string(int64([0, 9]), ["a", "b"])
    table = lookup.string_to_index_table_from_tensor(["a", "b"], default_value=4)
    initialised(session)
    assert session.run(ids) == 1 and session.run(words).tolist() == [b"a", b"UNK"]
    assert session.run(table.lookup(tf.constant(["c"]))) == 4


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: lookup.index_table_from_tensor(None), ValueError, "must be specified"),
        (lambda: lookup.index_table_from_tensor([1]), ValueError, "Expected string, got int32"),
        (lambda: lookup.index_table_from_tensor(["a"], -1), ValueError, "num_oov_buckets"),
        (lambda: lookup.index_table_from_tensor(["a"], 1, hasher_spec=3), TypeError, "HasherSpec"),
        (lambda: lookup.index_table_from_file(""), ValueError, "must not be empty"),
        (lambda: lookup.index_table_from_file("f", vocab_size=0), ValueError, "greater than 0"),
        (lambda: lookup.index_table_from_file("f", key_dtype=tf.float32), TypeError, "float32"),
        (lambda: lookup.IdTableWithHashBuckets(None, 0), ValueError, "must be > 0"),
        (lambda: lookup.StrongHashSpec([1]), ValueError, "size 2"),
        (lambda: lookup.StrongHashSpec([1, -2]), TypeError, "unsigned"),
        (lambda: tf.lookup.StaticVocabularyTable(None, 0), ValueError, "must be > 0"),
    ],
)
def test_arguments_of_vocabularies(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


def test_in_a_pipeline(session):
    table = lookup.index_table_from_tensor(["a", "b"])
    dataset = tf.data.Dataset.from_tensor_slices(["b", "c"]).map(table.lookup)
    with pytest.raises(ValueError, match="LookupTable"):
        dataset.make_one_shot_iterator()
    iterator = dataset.make_initializable_iterator()
    following = iterator.get_next()
    initialised(session)
    session.run(iterator.initializer)
    assert [session.run(following) for _ in range(2)] == [1, -1]


# Mutable tables


def test_insert_and_remove(session):
    table = lookup.MutableHashTable(tf.string, tf.int64, -1)
    session.run(table.insert(tf.constant(["a", "b", "a"]), int64([1, 2, 3])))
    assert session.run(table.lookup(tf.constant(["a", "b", "c"]))).tolist() == [3, 2, -1]
    session.run(table.remove(tf.constant(["a", "zzz"])))
    assert session.run(table.size()) == 1
    session.run(table.insert(tf.constant(["c"]), int64([9])))
    keys, values = session.run(table.export())
    assert dict(zip(keys, values, strict=True)) == {b"b": 2, b"c": 9}


def test_tensors_as_values(session):
    table = lookup.MutableHashTable(tf.int64, tf.float32, [0.0, -1.0])
    session.run(table.insert(int64([7]), [[1.0, 2.0]]))
    actual = table.lookup(int64([[7, 8]]))
    assert actual.shape == (1, 2, 2)
    np.testing.assert_array_equal(session.run(actual), [[[1, 2], [0, -1]]])
    fed = tf.placeholder(tf.float32)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Expected shape \[1, 2\]"):
        session.run(table.insert(int64([7]), fed), {fed: [[1.0, 2.0, 3.0]]})


def test_tensors_as_keys(session):
    table = lookup.MutableDenseHashTable(
        tf.int64, tf.string, "?", empty_key=[0, 0], deleted_key=[-1, -1]
    )
    session.run(table.insert(int64([[1, 2], [3, 4]]), tf.constant(["a", "b"])))
    actual = table.lookup(int64([[3, 4], [4, 3]]))
    assert actual.shape == (2,)
    assert session.run(actual).tolist() == [b"b", b"?"]
    keys, values = session.run(table.export())
    assert keys.tolist() == [[1, 2], [3, 4]] and values.tolist() == [b"a", b"b"]
    with pytest.raises(tf.errors.InvalidArgumentError, match="empty_key"):
        session.run(table.lookup(int64([[0, 0]])))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"end in shape \[2\]"):
        session.run(table.lookup(int64([1, 2, 3])))


def test_reserved_keys_must_differ(session):
    table = tf.lookup.experimental.DenseHashTable(tf.int64, tf.int64, 0, 1, 1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="cannot be equal"):
        session.run(table.size())


def test_saved_and_restored(session, tmp_path):
    table = lookup.MutableHashTable(tf.string, tf.float32, [0.0, 0.0], name="scope/table")
    dense = lookup.MutableDenseHashTable(tf.int64, tf.int64, -1, 0, -1)
    lookup.MutableHashTable(tf.string, tf.float32, 0.0, checkpoint=False)
    session.run(table.insert(tf.constant(["a", "b"]), [[1.0, 2.0], [3.0, 4.0]]))
    session.run(dense.insert(int64([5]), int64([6])))
    saver = tf.train.Saver()
    path = saver.save(session, str(tmp_path / "model"))
    assert [name for name, _ in tf.train.list_variables(path)] == [
        "MutableDenseHashTable-keys",
        "MutableDenseHashTable-values",
        "scope/table-keys",
        "scope/table-values",
    ]
    session.run(table.insert(tf.constant(["c"]), [[5.0, 6.0]]))
    saver.restore(session, path)
    keys, values = session.run(table.export())
    assert keys.tolist() == [b"a", b"b"] and values.tolist() == [[1, 2], [3, 4]]
    assert session.run(dense.lookup(int64([5, 4]))).tolist() == [6, -1]


def test_a_rejected_import_changes_nothing():
    table = Table("t", dtypes.int64, dtypes.int64)
    table.insert([1], [2])
    with pytest.raises(tf.errors.InvalidArgumentError, match="Expected shape"):
        table.replace([1, 2], [3])
    assert [column.tolist() for column in table.export()] == [[1], [2]]


def test_through_a_graph_def(session):
    table = static()
    tf.identity(table.lookup(tf.constant(["b"])), name="found")
    definition = session.graph.as_graph_def()
    for node in definition.node:  # the ops of older graphs
        node.op = node.op.replace("HashTableV2", "HashTable").replace("FindV2", "Find")
    with tf.Graph().as_default(), tf.Session() as other:
        tf.import_graph_def(definition, name="")
        other.run(table.initializer.name)
        assert other.run("found:0") == 2.5


def test_concurrent_steps(session):
    table = lookup.MutableHashTable(tf.int64, tf.int64, -1)
    fed = tf.placeholder(tf.int64, [None])
    insert = table.insert(fed, fed * 2)

    def work(start):
        for first in range(start, start + 200, 10):
            session.run(insert, {fed: np.arange(first, first + 10)})

    threads = [threading.Thread(target=work, args=(200 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert session.run(table.size()) == 800
    actual = session.run(table.lookup(fed), {fed: np.arange(801)})
    assert actual.tolist() == [*range(0, 1600, 2), -1]


CHANGES = st.lists(
    st.tuples(st.booleans(), st.lists(st.integers(0, 40), max_size=30), st.integers()), max_size=8
)


@given(CHANGES)
def test_a_table_matches_a_dict(changes):
    table, model = Table("t", dtypes.int64, dtypes.int64), {}
    for removes, keys, seed in changes:
        values = [(seed + index) % 1000 for index in range(len(keys))]
        if removes:
            table.remove(np.array(keys, np.int64))
            model = {key: value for key, value in model.items() if key not in keys}
        else:
            table.insert(np.array(keys, np.int64), np.array(values, np.int64))
            model |= dict(zip(keys, values, strict=True))
    everything = np.arange(41)
    assert table.find(everything, -1).tolist() == [model.get(key, -1) for key in range(41)]
    assert table.size == len(model)
    assert dict(zip(*(column.tolist() for column in table.export()), strict=True)) == model


def test_errors_of_missing_values_name_the_users_line():
    with pytest.raises(ValueError, match=r"of the values of a table .*test_lookup\.py:\d+"):
        tf.contrib.lookup.KeyValueTensorInitializer(["a"], [1, 2])
