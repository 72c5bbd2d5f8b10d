"""Sequences to sequences: decoders, attention and beam search, `tf.contrib.seq2seq`.

A `Decoder` says what one step does; `dynamic_decode` is the loop. `BasicDecoder` runs a recurrent
cell whose next input a `Helper` picks, `BeamSearchDecoder` keeps the best beams; `AttentionWrapper`
is a cell that looks at a memory. `legacy.py` has the unrolled models of `contrib.legacy_seq2seq`,
`decoder_functions.py` the loop of TensorFlow 1.0. `crf.py` scores and decodes sequences of tags.
Graph code only.
"""

from thalweg.seq2seq import (
    attention,
    attention_wrapper,
    basic_decoder,
    beam_search,
    crf,
    decoder,
    decoder_functions,
    helpers,
    legacy,
    legacy_attention,
    monotonic,
    scheduled,
)

__all__ = [
    "attention",
    "attention_wrapper",
    "basic_decoder",
    "beam_search",
    "crf",
    "decoder",
    "decoder_functions",
    "helpers",
    "legacy",
    "legacy_attention",
    "monotonic",
    "scheduled",
]
