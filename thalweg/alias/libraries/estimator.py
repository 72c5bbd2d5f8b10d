"""tensorflow-estimator 1.15.1: it is `tf.estimator`."""

from thalweg.alias.libraries.library import Library, outdated

LIBRARY = Library(
    package="tensorflow_estimator",
    requirement="tensorflow-estimator==1.15.1",
    extra="estimator",
    places={"estimator": "tensorflow_estimator._api.v1.estimator"},
    patches=outdated("tensorflow_estimator"),
)
