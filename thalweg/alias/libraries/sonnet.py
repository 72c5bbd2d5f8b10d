"""Sonnet 1.36, and TensorFlow Probability, which it imports: not below `tf.`, but mended."""

from thalweg.alias.libraries.library import Library, outdated

LIBRARY = Library(
    package="sonnet",
    requirement="dm-sonnet==1.36",
    extra="sonnet",
    places={},
    patches=[*outdated("sonnet"), *outdated("tensorflow_probability")],
)
