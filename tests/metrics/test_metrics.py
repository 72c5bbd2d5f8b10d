"""Metrics over two batches against the same numbers computed at once."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.metrics import top_k as top_k_metrics

R = np.random.default_rng(6)
LABELS = R.uniform(size=(2, 4)).astype(np.float32)
PREDICTIONS = R.uniform(size=(2, 4)).astype(np.float32)
WEIGHTS = np.array([[1, 2, 0, 1], [3, 0, 1, 1]], np.float32)
YES = np.array([[1, 0, 1, 1], [0, 0, 1, 0]])
GUESS = np.array([[1, 1, 0, 1], [0, 1, 1, 0]])


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        yield graph


def stream(make: Callable[..., Any], *batches: Any) -> Any:
    """Update with each row of the batches in turn; the value, checked against the last update."""
    inputs = [tf.placeholder(b.dtype, b.shape[1:]) for b in batches]
    value, update = make(*inputs)
    with tf.Session() as session:
        session.run(tf.local_variables_initializer())
        last = None
        for rows in zip(*batches, strict=True):
            last = session.run(update, dict(zip(inputs, rows, strict=True)))
        first, second = session.run(value), session.run(value)
    np.testing.assert_array_equal(first, second)
    return first, last


def weighted(values: Any) -> Any:
    return (values * WEIGHTS).sum() / WEIGHTS.sum()


SQUARES = (PREDICTIONS - LABELS) ** 2
TP, FP = (YES & GUESS) * WEIGHTS, (~YES & 1 & GUESS) * WEIGHTS
FN, TN = (YES & ~GUESS & 1) * WEIGHTS, ((1 - YES) & (1 - GUESS)) * WEIGHTS
SCORED = [
    ("mean_absolute_error", weighted(np.abs(PREDICTIONS - LABELS))),
    ("mean_squared_error", weighted(SQUARES)),
    ("root_mean_squared_error", np.sqrt(weighted(SQUARES))),
]
DECIDED = [
    ("accuracy", weighted(YES == GUESS)),
    ("true_positives", TP.sum()),
    ("false_positives", FP.sum()),
    ("true_negatives", TN.sum()),
    ("false_negatives", FN.sum()),
    ("precision", TP.sum() / (TP + FP).sum()),
    ("recall", TP.sum() / (TP + FN).sum()),
]


@pytest.mark.parametrize(("name", "wanted"), SCORED)
def test_errors(name: str, wanted: float) -> None:
    value, last = stream(getattr(tf.metrics, name), LABELS, PREDICTIONS, WEIGHTS)
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    np.testing.assert_allclose(last, wanted, rtol=1e-5)


@pytest.mark.parametrize(("name", "wanted"), DECIDED)
def test_decisions(name: str, wanted: float) -> None:
    value, last = stream(getattr(tf.metrics, name), YES, GUESS, WEIGHTS)
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    np.testing.assert_allclose(last, wanted, rtol=1e-5)


def test_mean_and_its_collections() -> None:
    value, update = tf.metrics.mean(
        tf.ones([3]), metrics_collections=["m"], updates_collections=["u"], name="mine"
    )
    assert tf.get_collection("m") == [value]
    assert tf.get_collection("u") == [update]
    assert [v.op.name for v in tf.local_variables()] == ["mine/total", "mine/count"]
    assert tf.get_collection(tf.GraphKeys.METRIC_VARIABLES) == tf.local_variables()
    assert tf.trainable_variables() == []
    with tf.Session() as session:
        session.run(tf.local_variables_initializer())
        assert session.run(value) == 0
        assert session.run(update) == 1


def test_weighted_mean_and_mean_tensor() -> None:
    assert stream(tf.metrics.mean, LABELS, WEIGHTS)[0] == pytest.approx(weighted(LABELS), rel=1e-5)
    value, _ = stream(tf.metrics.mean_tensor, LABELS, WEIGHTS)
    total, count = (LABELS * WEIGHTS).sum(0), WEIGHTS.sum(0)
    np.testing.assert_allclose(value, total / count, rtol=1e-5)


def test_relative_cosine_and_percentage() -> None:
    normalizer = np.where(WEIGHTS > 0, 2.0, 0.0).astype(np.float32)
    value, _ = stream(tf.metrics.mean_relative_error, LABELS, PREDICTIONS, normalizer)
    safe = np.where(normalizer > 0, np.abs(LABELS - PREDICTIONS) / 2, 0)
    np.testing.assert_allclose(value, safe.mean(), rtol=1e-5)
    value, _ = stream(lambda a, b: tf.metrics.mean_cosine_distance(a, b, 0), LABELS, PREDICTIONS)
    np.testing.assert_allclose(value, 1 - (LABELS * PREDICTIONS).sum(1).mean(), rtol=1e-5)
    value, _ = stream(lambda a, w: tf.metrics.percentage_below(a, 0.5, w), LABELS, WEIGHTS)
    np.testing.assert_allclose(value, weighted(LABELS < 0.5), rtol=1e-5)


def test_shapes_that_differ_by_a_column() -> None:
    _, update = tf.metrics.accuracy(tf.ones([3]), tf.ones([3, 1]), [[1.0], [2.0], [3.0]])
    with tf.Session() as session:
        session.run(tf.local_variables_initializer())
        assert session.run(update) == 1


def test_a_column_that_only_the_step_knows() -> None:
    predictions = tf.placeholder(tf.float32)
    _, update = tf.metrics.accuracy(tf.ones([3]), predictions)
    with tf.Session() as session:
        session.run(tf.local_variables_initializer())
        assert session.run(update, {predictions: [[1], [1], [0]]}) == pytest.approx(2 / 3)


def test_bad_shapes() -> None:
    with pytest.raises(ValueError, match="incompatible"):
        tf.metrics.accuracy(tf.ones([3]), tf.ones([4]))
    with pytest.raises(ValueError, match="can not be broadcast"):
        tf.metrics.mean(tf.ones([3, 2]), tf.ones([3]))


THRESHOLDS = [0.2, 0.5, 0.8]


def counts() -> dict[str, Any]:
    above = PREDICTIONS[None] > np.array(THRESHOLDS)[:, None, None]
    yes = YES.astype(bool)
    cases = {"tp": above & yes, "fp": above & ~yes, "fn": ~above & yes, "tn": ~above & ~yes}
    return {key: (case * WEIGHTS).sum((1, 2)) for key, case in cases.items()}


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("true_positives_at_thresholds", lambda c: c["tp"]),
        ("false_negatives_at_thresholds", lambda c: c["fn"]),
        ("true_negatives_at_thresholds", lambda c: c["tn"]),
        ("false_positives_at_thresholds", lambda c: c["fp"]),
        ("precision_at_thresholds", lambda c: c["tp"] / (c["tp"] + c["fp"] + 1e-7)),
        ("recall_at_thresholds", lambda c: c["tp"] / (c["tp"] + c["fn"] + 1e-7)),
    ],
)
def test_thresholds(name: str, formula: Callable[..., Any]) -> None:
    metric = getattr(tf.metrics, name)
    value, _ = stream(lambda y, p, w: metric(y, p, THRESHOLDS, w), YES, PREDICTIONS, WEIGHTS)
    np.testing.assert_allclose(value, formula(counts()), rtol=1e-5)


def rank_area(labels: Any, scores: Any) -> float:
    """The share of (positive, negative) pairs in the right order: the area under the ROC curve."""
    positive, negative = scores[labels == 1], scores[labels == 0]
    return float(np.mean(positive[:, None] > negative[None, :]))


@pytest.mark.parametrize("method", ["trapezoidal", "careful_interpolation"])
def test_area_under_roc(method: str) -> None:
    value, _ = stream(
        lambda y, p: tf.metrics.auc(y, p, num_thresholds=2000, summation_method=method),
        YES,
        PREDICTIONS,
    )
    np.testing.assert_allclose(value, rank_area(YES, PREDICTIONS), atol=1e-3)


def test_area_bounds_and_pr() -> None:
    def area(curve: str, method: str) -> float:
        return stream(
            lambda y, p: tf.metrics.auc(y, p, curve=curve, summation_method=method),
            YES,
            PREDICTIONS,
        )[0]

    for curve in ("ROC", "PR"):
        low, mid, high = (area(curve, m) for m in ("minoring", "trapezoidal", "majoring"))
        assert low <= mid <= high
    assert 0 < area("PR", "careful_interpolation") < 1
    with pytest.raises(ValueError, match="ROC or PR"):
        tf.metrics.auc(YES, PREDICTIONS, curve="XY")
    with pytest.raises(ValueError, match="summation_method"):
        tf.metrics.auc(YES, PREDICTIONS, summation_method="magic")


def test_sensitivity_and_specificity() -> None:
    scores = np.array([[0.1, 0.2, 0.3, 0.6, 0.9]], np.float32)
    yes = np.array([[0, 0, 1, 0, 1]])
    value, _ = stream(lambda y, p: tf.metrics.sensitivity_at_specificity(y, p, 1.0), yes, scores)
    np.testing.assert_allclose(value, 0.5, rtol=1e-5)
    value, _ = stream(lambda y, p: tf.metrics.specificity_at_sensitivity(y, p, 1.0), yes, scores)
    np.testing.assert_allclose(value, 2 / 3, rtol=1e-5)
    with pytest.raises(ValueError, match="range"):
        tf.metrics.sensitivity_at_specificity(yes, scores, 1.5)


def test_scores_outside_the_unit_interval_are_refused() -> None:
    _, update = tf.metrics.auc([1, 0], [0.5, 1.5])
    with tf.Session() as session:
        session.run(tf.local_variables_initializer())
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[0, 1\]"):
            session.run(update)


SCORES = np.array([[0.4, 0.1, 0.3, 0.2], [0.1, 0.2, 0.3, 0.4]], np.float32)
SETS = np.array([[0, 1], [2, 2]])  # two labels, and one written twice


def at_k(metric: Callable[..., Any], labels: Any, **options: Any) -> float:
    with tf.Graph().as_default(), tf.Session() as session:
        value, update = metric(labels, tf.constant(SCORES), **options)
        session.run(tf.local_variables_initializer())
        updated = session.run(update)
        np.testing.assert_array_equal(session.run(value), updated)
        return updated


@pytest.mark.parametrize("is_sparse", [False, True])
def test_top_k(is_sparse: bool) -> None:
    labels: Any = SETS
    if is_sparse:
        labels = tf.SparseTensorValue([[0, 0], [0, 3], [1, 1]], [0, 1, 2], [2, 4])
    assert at_k(tf.metrics.precision_at_k, labels, k=2) == 0.5  # 0 of {0, 2}, 2 of {3, 2}
    assert at_k(tf.metrics.recall_at_k, labels, k=2) == pytest.approx(2 / 3)
    assert at_k(tf.metrics.recall_at_k, labels, k=2, class_id=1) == 0
    assert np.isnan(at_k(tf.metrics.precision_at_k, labels, k=2, class_id=1))
    assert at_k(tf.metrics.sparse_precision_at_k, labels, k=1, weights=[1.0, 0.0]) == 1
    # (1/1) / 2 for the first example, (1/2) / 1 for the second, / 2 where its label counts twice
    wanted = 0.5 if is_sparse else 0.375
    assert at_k(tf.metrics.average_precision_at_k, labels, k=2) == pytest.approx(wanted)


def expected_at_k(metric: str, labels: Any, k: int, class_id: int | None, weights: Any) -> float:
    """The metric by sets of class numbers, example by example."""
    hits, missed, wrong, precisions = np.zeros((4, len(labels)))
    for row, (numbers, scores) in enumerate(zip(labels, SCORES, strict=True)):
        best = np.argsort(-scores, kind="stable")[:k].tolist()
        chosen, given = set(best), set(numbers)
        if class_id is not None:
            chosen, given = chosen & {class_id}, given & {class_id}
        hits[row], wrong[row] = len(chosen & given), len(chosen - given)
        missed[row] = len(given - chosen)
        known = [number for number in numbers if 0 <= number < len(scores)]
        shares = [len(set(best[: i + 1]) & given) / (i + 1) for i in range(k) if best[i] in given]
        precisions[row] = sum(shares) / min(len(known), k) if known else np.nan
    if metric == "average_precision":
        return (precisions * weights).sum() / weights.sum()
    others = wrong if metric == "precision" else missed
    total = ((hits + others) * weights).sum()
    return (hits * weights).sum() / total if total else np.nan


@pytest.mark.parametrize("metric", ["precision", "recall", "average_precision"])
@pytest.mark.parametrize(
    "labels", [[[0, 1], [2, 2]], [[-1, 0], [3, -1]], [[7, 1], [2, 9]], [[-1, 0], [-1, 8]]]
)
def test_labels_that_repeat_or_name_no_class(metric: str, labels: Any) -> None:
    weights = np.array([1.0, 3.0])
    for k in (1, 2, 4):
        for class_id in (None,) if metric == "average_precision" else (None, 0, 2, -1):
            options = {} if class_id is None else {"class_id": class_id}
            actual = at_k(
                getattr(tf.metrics, f"{metric}_at_k"),
                np.array(labels),
                k=k,
                weights=weights,
                **options,
            )
            expected = expected_at_k(metric, labels, k, class_id, weights)
            np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_top_k_indices_are_rows() -> None:
    top_k = tf.metrics.precision_at_top_k, tf.metrics.recall_at_top_k
    for metric in (*top_k, top_k_metrics.average_precision_at_top_k):
        with pytest.raises(ValueError, match="a row of classes for each example"):
            metric([1], [0, 2])


def test_top_k_indices_and_names() -> None:
    value, update = tf.metrics.precision_at_top_k(SETS, [[0, 2], [3, 2]], k=2)
    recall, _ = tf.metrics.recall_at_top_k(SETS, [[0, 2], [3, 2]], k=2, class_id=1)
    assert value.op.name == "precision_at_2"
    assert recall.op.name == "recall_at_2_class1"
    assert tf.local_variables()[0].op.name == "precision_at_2/true_positive_at_2"
    with tf.Session() as session:
        session.run(tf.local_variables_initializer())
        assert session.run(update) == 0.5


def test_confusion_matrix() -> None:
    with tf.Session() as session:
        matrix = tf.confusion_matrix([0, 1, 2, 2], [0, 2, 2, 2])
        np.testing.assert_array_equal(session.run(matrix), [[1, 0, 0], [0, 0, 1], [0, 0, 2]])
        matrix = tf.confusion_matrix([[0], [1]], [1, 1], 3, tf.float32, weights=[0.5, 2.0])
        assert matrix.shape.as_list() == [3, 3]
        np.testing.assert_array_equal(session.run(matrix), [[0, 0.5, 0], [0, 2, 0], [0, 0, 0]])
        for labels, message in (([5, 0], "out of bound"), ([-1, 0], "negative")):
            with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=message):
                session.run(tf.confusion_matrix(labels, [0, 0], 2))
    with pytest.raises(ValueError, match="must be equal"):
        tf.confusion_matrix([0, 1], [0, 1, 2])


def test_mean_iou_and_per_class_accuracy() -> None:
    labels, guesses = np.array([[0, 0, 1], [1, 2, 2]]), np.array([[0, 1, 1], [1, 2, 0]])
    value, matrix = stream(lambda a, b: tf.metrics.mean_iou(a, b, 4), labels, guesses)
    np.testing.assert_allclose(value, np.mean([1 / 3, 2 / 3, 1 / 2]), rtol=1e-5)
    np.testing.assert_array_equal(matrix[:3, :3], [[1, 1, 0], [0, 2, 0], [1, 0, 1]])
    value, last = stream(lambda a, b: tf.metrics.mean_per_class_accuracy(a, b, 3), labels, guesses)
    np.testing.assert_allclose(last, [1 / 2, 1, 1 / 2], rtol=1e-5)
    np.testing.assert_allclose(value, np.mean(last), rtol=1e-5)


def test_contrib_order_is_predictions_first() -> None:
    value, _ = stream(tf.contrib.metrics.streaming_precision, GUESS, YES, WEIGHTS)
    np.testing.assert_allclose(value, TP.sum() / (TP + FP).sum(), rtol=1e-5)
