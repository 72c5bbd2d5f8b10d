"""What Sonnet takes from TensorFlow Probability: distributions, and an inverse of softplus."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from thalweg.alias import names

tf = names.root()


def softplus_inverse(x: Any, name: str | None = None) -> Any:
    """y with softplus(y) = x: log(exp(x) - 1)."""
    with tf.name_scope(name, "softplus_inverse", [x]):
        value = tf.convert_to_tensor(x, name="value")
        # exp(x) - 1 = exp(x) (1 - exp(-x)), whose logarithm does not overflow.
        return value + tf.log(-tf.expm1(-value))


distributions = tf.distributions
math = SimpleNamespace(softplus_inverse=softplus_inverse)
