"""Text: normalisation, n-grams, joining, splitting, patterns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.node import Tensor
from thalweg.onnx.registry import NodeView, operator
from thalweg.ops.core import python_call
from thalweg.ops.text import strings


def _decoded(data: Any) -> list[str]:
    flat = np.ravel(np.asarray(data, object)).tolist()
    return [each.decode() if isinstance(each, bytes) else str(each) for each in flat]


@operator("StringNormalizer", since=10)
def string_normalizer(node: NodeView, x: Tensor) -> Tensor:
    """Words in another case, without stop words; an empty word where all are stop words."""
    change = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}
    changed = change[node.get("case_change_action", "NONE")]
    exact = bool(node.get("is_case_sensitive", 0))
    fold = str if exact else str.lower
    stops = {fold(word) for word in node.get("stopwords") or ()}

    def normalize(data: Any) -> Any:
        kept = [word for word in _decoded(data) if fold(word) not in stops]
        result = np.array([changed(word).encode() for word in kept] or [b""], object)
        return result[None] if np.ndim(data) == 2 else result

    result = python_call.numpy_function(normalize, [x], dtypes.string)
    result.set_shape([None] if x.shape.rank == 1 else [1, None])
    return result


@operator("TfIdfVectorizer", since=9)
def tf_idf_vectorizer(node: NodeView, x: Tensor) -> Tensor:
    """How often each n-gram of a pool occurs, or whether, weighted."""
    least, most = int(node.get("min_gram_length")), int(node.get("max_gram_length"))
    skip, mode = int(node.get("max_skip_count")), node.get("mode")
    pool = [*(node.get("pool_strings") or ()), *(node.get("pool_int64s") or ())]
    grams = _grams(pool, node.get("ngram_counts"), node.get("ngram_indexes"))
    weights = node.get("weights")
    width = max(node.get("ngram_indexes")) + 1
    scale = np.ones(width, np.float32)
    if weights is not None:
        scale[np.array(node.get("ngram_indexes"))] = weights

    def count(data: Any) -> Any:
        rows = [data] if np.ndim(data) == 1 else list(data)
        found: Any = np.stack([_counts(row, grams, width, least, most, skip) for row in rows])
        if mode != "TF":
            found = (found > 0 if mode == "IDF" else found) * scale
        found = found.astype(np.float32)
        return found[0] if np.ndim(data) == 1 else found

    result = python_call.numpy_function(count, [x], dtypes.float32)
    result.set_shape([width] if x.shape.rank == 1 else [None, width])
    return result


def _grams(pool: Sequence[Any], starts: Any, indexes: Any) -> dict[tuple[Any, ...], int]:
    result: dict[tuple[Any, ...], int] = {}
    ends = [*starts[1:], len(pool)]
    numbers = iter(indexes)
    for size, (start, end) in enumerate(zip(starts, ends, strict=True), 1):
        for index in range(start, end, size):
            result[tuple(pool[index : index + size])] = next(numbers)
    return result


def _counts(row: Any, grams: Any, width: int, least: int, most: int, skip: int) -> Any:
    items = _decoded(row) if np.asarray(row).dtype == object else np.asarray(row).tolist()
    array = np.zeros(width, np.float32)
    for size in range(least, most + 1):
        for gap in range(1, skip + 2) if size > 1 else (1,):
            for start in range(len(items) - (size - 1) * gap):
                gram = tuple(items[start : start + size * gap : gap])
                if gram in grams and len(gram) == size:
                    array[grams[gram]] += 1
    return array


@operator("StringConcat", since=20)
def string_concat(node: NodeView, x: Tensor, y: Tensor) -> Tensor:
    return strings.string_join([x, y])


@operator("RegexFullMatch", since=20)
def regex_full_match(node: NodeView, x: Tensor) -> Tensor:
    pattern = re.compile(node.get("pattern"))

    def match(data: Any) -> Any:
        found = [pattern.fullmatch(word) is not None for word in _decoded(data)]
        return np.array(found, bool).reshape(np.shape(data))

    result = python_call.numpy_function(match, [x], dtypes.bool)
    result.set_shape(x.shape)
    return result


@operator("StringSplit", since=20)
def string_split(node: NodeView, x: Tensor) -> Any:
    """[..., most] pieces, filled up with empty ones, and how many each text has."""
    delimiter, limit = node.get("delimiter") or None, int(node.get("maxsplit", -1))

    def split(data: Any) -> Any:
        parts = [word.split(delimiter, limit) for word in _decoded(data)]
        most = max([len(part) for part in parts], default=0)
        rows = [[*part, *[""] * (most - len(part))] for part in parts]
        made = np.array([[piece.encode() for piece in row] for row in rows], object)
        counts = np.array([len(part) for part in parts], np.int64)
        return made.reshape((*np.shape(data), most)), counts.reshape(np.shape(data))

    pieces, counts = python_call.numpy_function(split, [x], [dtypes.string, dtypes.int64])
    counts.set_shape(x.shape)
    return pieces, counts
