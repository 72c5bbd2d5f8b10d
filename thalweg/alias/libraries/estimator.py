"""tensorflow-estimator 1.15.1: it is `tf.estimator`."""

from thalweg.alias.libraries.library import Library, Patch, outdated

LIBRARY = Library(
    package="tensorflow_estimator",
    requirement="tensorflow-estimator==1.15.1",
    extra="estimator",
    places={"estimator": "tensorflow_estimator._api.v1.estimator"},
    patches=[
        *outdated("tensorflow_estimator"),
        Patch(
            "tensorflow_estimator*",
            r"from tensorflow_estimator\._api\.v1\.estimator import tpu",
            "tpu = None",
            "its estimators for TPUs import what is in TensorFlow for TPUs",
        ),
    ],
)
