"""`tf.contrib.metrics.streaming_*`: the older names of metrics, with predictions before labels."""

from __future__ import annotations

from thalweg.losses.matching import predictions_first
from thalweg.metrics import confusion, counts, means, thresholds
from thalweg.public import publish_value

for _metric in (
    confusion.mean_iou,
    counts.precision,
    counts.recall,
    means.accuracy,
    means.mean_absolute_error,
    means.mean_cosine_distance,
    means.mean_relative_error,
    means.mean_squared_error,
    means.root_mean_squared_error,
    thresholds.auc,
    thresholds.precision_at_thresholds,
    thresholds.recall_at_thresholds,
    thresholds.sensitivity_at_specificity,
    thresholds.specificity_at_sensitivity,
):
    publish_value(f"contrib.metrics.streaming_{_metric.__name__}", predictions_first(_metric))
