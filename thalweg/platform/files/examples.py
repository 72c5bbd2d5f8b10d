"""`tf.train.Example` and its parts, for programs that write or inspect data.

Parsing in a graph does not use them.
"""

from __future__ import annotations

from thalweg import protos

protos.publish("Example", "Feature", "Features", "FeatureList", "FeatureLists", below="train")
protos.publish("SequenceExample", "BytesList", "FloatList", "Int64List", below="train")
