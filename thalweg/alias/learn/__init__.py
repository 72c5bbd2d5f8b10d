"""`tf.contrib.learn`, as far as programs use it: estimators with `fit`, experiments, text to ids.

The estimators are those of `tf.estimator` (extra `[estimator]`), called as programs of 2016 do.
"""

from thalweg.alias.learn.text import VocabularyProcessor, load_dataset

__all__ = ["VocabularyProcessor", "load_dataset"]
