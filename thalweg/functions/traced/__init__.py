"""`@tf.function`: Python functions traced to bodies, the cache of traces, their calls."""
