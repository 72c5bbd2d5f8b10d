"""Ids to vectors: `bow_encoder` and `embed_sequence` of `tf.contrib.layers`."""

from __future__ import annotations

from typing import Any

from thalweg.alias import names

tf = names.root()


def bow_encoder(
    ids: Any,
    vocab_size: int,
    embed_dim: int,
    sparse_lookup: bool = True,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    scope: Any = None,
    reuse: Any = None,
) -> Any:
    """The mean embedding of the ids of each example, [batch, embed_dim]; 0 is padding, unless
    `sparse_lookup` is False.
    """
    if not vocab_size or not embed_dim:
        raise ValueError("Must specify vocab size and embedding dimension")
    with tf.variable_scope(scope, "bow_encoder", [ids], reuse=reuse):
        table = _embeddings([vocab_size, embed_dim], initializer, regularizer, trainable)
        is_sparse = isinstance(ids, tf.SparseTensor)
        if not sparse_lookup:
            if is_sparse:
                raise TypeError(f"ids are expected to be dense Tensor, got: {ids}")
            return tf.reduce_mean(tf.nn.embedding_lookup(table, ids), axis=1)
        sparse = ids if is_sparse else tf.contrib.layers.dense_to_sparse(ids)
        return tf.nn.safe_embedding_lookup_sparse([table], sparse, combiner="mean", default_id=0)


def embed_sequence(
    ids: Any,
    vocab_size: int | None = None,
    embed_dim: int | None = None,
    unique: bool = False,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    scope: Any = None,
    reuse: Any = None,
) -> Any:
    """The embeddings of ids, [batch, length, embed_dim]; with `unique`, each is looked up once."""
    if not (reuse or (vocab_size and embed_dim)):
        raise ValueError(
            "Must specify vocab size and embedding dimension when not reusing. Got "
            f"vocab_size={vocab_size} and embed_dim={embed_dim}"
        )
    with tf.variable_scope(scope, "EmbedSequence", [ids], reuse=reuse):
        shape = [vocab_size, embed_dim] if vocab_size and embed_dim else None
        table = _embeddings(shape, initializer, regularizer, trainable)
        if not unique:
            return tf.nn.embedding_lookup(table, ids)
        flat, places = tf.unique(tf.reshape(ids, [-1]))
        rows = tf.gather(tf.nn.embedding_lookup(table, flat), places)
        sizes = tf.concat([tf.shape(ids), tf.shape(table)[1:]], 0)
        result = tf.reshape(rows, sizes)
        result.set_shape(tf.convert_to_tensor(ids).shape.concatenate(table.shape[1:]))
        return result


def _embeddings(shape: Any, initializer: Any, regularizer: Any, trainable: bool) -> Any:
    """A model variable."""
    return tf.get_variable(
        "embeddings",
        shape,
        initializer=initializer,
        regularizer=regularizer,
        trainable=trainable,
        collections=[tf.GraphKeys.GLOBAL_VARIABLES, tf.GraphKeys.MODEL_VARIABLES],
    )
