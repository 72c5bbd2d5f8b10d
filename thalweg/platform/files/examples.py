"""`tf.train.Example` and its parts, for programs that write data or look into it.

Parsing in a graph does without them.
"""

from __future__ import annotations

from thalweg import protos

protos.publish("Example", "Feature", "Features", "FeatureList", "FeatureLists", below="train")
protos.publish("SequenceExample", "BytesList", "FloatList", "Int64List", below="train")
