"""`tensorflow.python.keras.optimizer_v2`, by which Estimator tells optimizers of Keras apart.

Thalweg's optimizers are those of `tf.train`; none of them is an `OptimizerV2`.
"""

from __future__ import annotations

from thalweg.alias import names

tf = names.root()


class OptimizerV2:
    """The base class of optimizers that Estimator does not get here."""


Ftrl, RMSProp = tf.train.FtrlOptimizer, tf.train.RMSPropOptimizer
