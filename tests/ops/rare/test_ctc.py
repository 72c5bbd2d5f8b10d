"""CTC: the loss compared with the sum over all paths, the decoders with exhaustive search."""

import itertools

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check

R = np.random.default_rng(0)


def softmax(x):
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def collapse(path, blank, merge=True):
    kept = [c for i, c in enumerate(path) if not merge or i == 0 or c != path[i - 1]]
    return tuple(c for c in kept if c != blank)


def probabilities(logits, merge=True):
    """The probability of every label sequence, by summing over all paths."""
    y, blank = softmax(logits), logits.shape[-1] - 1
    total: dict = {}
    for path in itertools.product(range(blank + 1), repeat=len(y)):
        labels = collapse(path, blank, merge)
        total[labels] = total.get(labels, 0) + np.prod(y[np.arange(len(y)), path])
    return total


def sparse(rows):
    indices = [[b, t] for b, row in enumerate(rows) for t in range(len(row))]
    values = [label for row in rows for label in row]
    width = max(map(len, rows))
    return tf.SparseTensor(
        np.array(indices, np.int64).reshape(-1, 2), np.array(values, np.int32), [len(rows), width]
    )


LOGITS = R.normal(size=(5, 3, 4)) * 2
LABELS = [[0, 1], [2, 2, 1], [1]]
LENGTHS = [4, 5, 3]


def run_loss(logits, labels=LABELS, lengths=LENGTHS, **options):
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.constant(logits)
        loss = tf.nn.ctc_loss(sparse(labels), x, np.array(lengths, np.int32), **options)
        return session.run([loss, tf.gradients(loss, x)[0]])


@pytest.mark.parametrize("merge", [True, False])
def test_loss_is_the_sum_over_paths(merge: bool) -> None:
    loss, _ = run_loss(LOGITS, ctc_merge_repeated=merge)
    for b, (row, length) in enumerate(zip(LABELS, LENGTHS, strict=True)):
        expected = -np.log(probabilities(LOGITS[:length, b], merge)[tuple(row)])
        np.testing.assert_allclose(loss[b], expected)


@pytest.mark.parametrize("merge", [True, False])
def test_gradient(merge: bool) -> None:
    _, gradient = run_loss(LOGITS, ctc_merge_repeated=merge)
    for index in [(0, 0, 0), (3, 0, 3), (4, 0, 1), (2, 1, 2), (4, 1, 1), (1, 2, 3)]:
        shifted = [LOGITS.copy(), LOGITS.copy()]
        shifted[0][index] += 1e-5
        shifted[1][index] -= 1e-5
        up, down = (run_loss(x, ctc_merge_repeated=merge)[0].sum() for x in shifted)
        np.testing.assert_allclose(gradient[index], (up - down) / 2e-5, atol=1e-6)


def test_frames_after_the_end_are_ignored() -> None:
    logits = LOGITS.copy()
    logits[4, 0] = logits[3:, 2] = np.nan
    loss, gradient = run_loss(logits)
    np.testing.assert_array_equal(loss, run_loss(LOGITS)[0])
    assert not gradient[4, 0].any() and not gradient[3:, 2].any()


def test_repeated_labels_may_be_collapsed_first() -> None:
    loss, _ = run_loss(LOGITS, preprocess_collapse_repeated=True)
    expected = run_loss(LOGITS, labels=[[0, 1], [2, 1], [1]])[0]
    np.testing.assert_array_equal(loss, expected)


def test_batch_first_and_old_order() -> None:
    loss, _ = run_loss(LOGITS)
    other, _ = run_loss(LOGITS.swapaxes(0, 1), time_major=False)
    np.testing.assert_array_equal(loss, other)
    with tf.Graph().as_default(), tf.Session() as session:
        old = tf.nn.ctc_loss(tf.constant(LOGITS), sparse(LABELS), np.array(LENGTHS, np.int32))
        np.testing.assert_array_equal(session.run(old), loss)


def test_labels_longer_than_the_frames() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="required: 4, available: 3"):
        run_loss(LOGITS, lengths=[4, 3, 3])
    loss, gradient = run_loss(LOGITS, lengths=[4, 3, 3], ignore_longer_outputs_than_inputs=True)
    assert np.isinf(loss[1]) and np.isfinite(loss[[0, 2]]).all()
    assert not gradient[:, 1].any()


def test_wrong_labels() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="blank"):
        run_loss(LOGITS, labels=[[3], [0], [1]])
    with tf.Graph().as_default(), pytest.raises(TypeError, match="SparseTensor"):
        tf.nn.ctc_loss(tf.constant([[1]]), LOGITS, [4, 5, 3])


def decoded(decoder, logits, lengths, **options):
    with tf.Graph().as_default(), tf.Session() as session:
        outputs = decoder(tf.constant(logits), np.array(lengths, np.int32), **options)
        paths, scores = session.run(outputs)
        rows = [[[] for _ in lengths] for _ in paths]
        for rank, path in enumerate(paths):
            for (b, t), label in zip(path.indices.tolist(), path.values.tolist(), strict=True):
                assert t == len(rows[rank][b])
                rows[rank][b].append(label)
            assert path.dense_shape.tolist() == [len(lengths), max(map(len, rows[rank]))]
        return rows, scores


@pytest.mark.parametrize("merge", [True, False])
def test_greedy(merge: bool) -> None:
    (rows,), scores = decoded(tf.nn.ctc_greedy_decoder, LOGITS, LENGTHS, merge_repeated=merge)
    for b, length in enumerate(LENGTHS):
        frames = LOGITS[:length, b]
        assert tuple(rows[b]) == collapse(frames.argmax(-1).tolist(), 3, merge)
        np.testing.assert_allclose(scores[b, 0], -frames.max(-1).sum())


def test_a_wide_beam_finds_the_best_sequences() -> None:
    rows, scores = decoded(
        tf.nn.ctc_beam_search_decoder,
        LOGITS,
        LENGTHS,
        beam_width=500,
        top_paths=3,
        merge_repeated=False,
    )
    for b, length in enumerate(LENGTHS):
        total = probabilities(LOGITS[:length, b])
        best = sorted(total, key=total.__getitem__, reverse=True)[:3]
        assert [tuple(rows[rank][b]) for rank in range(3)] == best
        np.testing.assert_allclose(scores[b], [np.log(total[labels]) for labels in best])


def test_a_beam_may_merge_repeats() -> None:
    logits = np.log(np.array([[0.98, 0.01, 0.01], [0.01, 0.01, 0.98], [0.98, 0.01, 0.01]]))
    for merge, expected in ((True, [0]), (False, [0, 0])):
        rows, _ = decoded(
            tf.nn.ctc_beam_search_decoder, logits[:, None], [3], beam_width=5, merge_repeated=merge
        )
        assert rows[0][0] == expected


def test_more_paths_than_the_beam_width() -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match="top_paths"):
        tf.nn.ctc_beam_search_decoder(LOGITS, LENGTHS, beam_width=2, top_paths=3)


@pytest.mark.parametrize("blank", [0, 2, -1])
def test_second_version_takes_any_blank(blank: int) -> None:
    """The loss does not depend on the position of the blank's class."""
    place = blank % 4
    order = [c for c in range(4) if c != place] + [place]
    logits = LOGITS[:, :, np.argsort(order)]
    expected, wanted_gradient = run_loss(LOGITS)
    dense = np.zeros((3, 3), np.int32)
    for b, row in enumerate(LABELS):
        dense[b, : len(row)] = [order[label] for label in row]
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.constant(logits)
        lengths = [len(row) for row in LABELS], np.array(LENGTHS, np.int32)
        loss = tf.nn.ctc_loss_v2(dense, x, *lengths, blank_index=blank)
        value, gradient = session.run([loss, tf.gradients(loss, x)[0]])
        np.testing.assert_allclose(value, expected)
        np.testing.assert_allclose(gradient, wanted_gradient[:, :, np.argsort(order)])


def test_second_version_of_sparse_labels_needs_the_blank() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        times = np.array(LENGTHS, np.int32)
        with pytest.raises(ValueError, match="blank_index"):
            tf.nn.ctc_loss_v2(sparse(LABELS), LOGITS, None, times)
        loss = tf.nn.ctc_loss_v2(sparse(LABELS), LOGITS, None, times, blank_index=3)
        np.testing.assert_allclose(session.run(loss), run_loss(LOGITS)[0])


def test_collapse_repeated() -> None:
    labels = np.array([[1, 1, 2, 2, 1], [3, 3, 3, 0, 0], [0, 0, 0, 0, 0]])
    with tf.Graph().as_default(), tf.Session() as session:
        rows, lengths = session.run(tf.nn.collapse_repeated(labels, np.array([5, 3, 0])))
        np.testing.assert_array_equal(rows, [[1, 2, 1], [3, 0, 0], [0, 0, 0]])
        np.testing.assert_array_equal(lengths, [3, 1, 0])


def test_unique_labels() -> None:
    labels = np.array([[3, 4, 4, 3], [1, 1, 1, 2]])
    with tf.Graph().as_default(), tf.Session() as session:
        unique, places = session.run(tf.nn.ctc_unique_labels(labels))
        np.testing.assert_array_equal(unique, [[3, 4, 0, 0], [1, 2, 0, 0]])
        np.testing.assert_array_equal(places, [[0, 1, 1, 0], [0, 0, 0, 1]])
        assert (unique.dtype, places.dtype) == (np.int64, np.int32)
    for kind in (np.int32, np.int64):
        check(tf.nn.ctc_unique_labels, labels.astype(kind), gradient=False)


def test_gradients() -> None:
    places, classes = np.array([[0, 0], [0, 1], [1, 0]]), np.array([0, 1, 1], np.int32)
    check(
        lambda x: tf.nn.ctc_loss(tf.SparseTensor(places, classes, (2, 2)), x, [4, 3]),
        R.normal(size=(4, 2, 3)),
        second=False,
    )
