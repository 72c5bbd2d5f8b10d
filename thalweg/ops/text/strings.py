"""Strings: joining, splitting, slicing and rewriting, element by element.

Values are arrays of bytes; positions and lengths count bytes unless `unit` is UTF-8 characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import dropwhile
from typing import Any

import numpy as np

from thalweg import errors
from thalweg.graph import dtypes
from thalweg.graph.composite import SparseTensor
from thalweg.graph.convert import convert_all, convert_to_tensor
from thalweg.graph.known import constant_value
from thalweg.graph.node import Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import (
    Size,
    TensorShape,
    broadcast_shapes,
    matrix,
    scalar,
    unknown_shape,
    vector,
)
from thalweg.ops.text import text
from thalweg.ops.text.text import text_array, text_item, text_of
from thalweg.platform.arrays import Array
from thalweg.platform.compat import as_bytes
from thalweg.public import public


class StringOp(Op, abstract=True):
    """An op on strings: it runs on the host and has no gradient."""

    host_only = True
    not_differentiable = True


class StringMap(StringOp, abstract=True):
    """Maps each string to a string."""

    signature = "input: string -> output: string"

    def shape(self, input: Tensor) -> TensorShape:
        return input.shape


class StringJoin(StringOp):
    """y[…] = x1[…], x2[…], … joined by a separator; scalars broadcast"""

    signature = "inputs: N*string -> output: string"
    separator: str = ""

    def shape(self, inputs: list[Tensor]) -> TensorShape:
        if all(tensor.shape.rank == 0 for tensor in inputs):
            return scalar()
        merged = unknown_shape()
        for tensor in inputs:
            if tensor.shape.rank:
                merged = merged.merge_with(tensor.shape)
        return merged

    def numpy(self, inputs: list[Array]) -> Array:
        arrays = [text_array(value) for value in inputs]
        shapes = {array.shape for array in arrays if array.ndim}
        if len(shapes) > 1:
            raise errors.invalid(f"Input shapes do not match: {sorted(shapes)}")
        shape = next(iter(shapes), ())
        columns = [np.broadcast_to(array, shape).ravel() for array in arrays]
        glue = as_bytes(self.separator)
        return text_of(map(glue.join, zip(*columns, strict=True)), shape)


@public("string_join", "strings.join")
def string_join(inputs: Sequence[Any], separator: str = "", name: str | None = None) -> Tensor:
    """Strings of several tensors joined element by element."""
    return StringJoin(separator=separator)(convert_all(inputs, dtypes.string), name=name)


class Splitter(StringOp, abstract=True):
    """The parts of each string of a vector, as the rows of a sparse matrix."""

    def shape(self, input: Tensor, separator: Tensor) -> list[TensorShape]:
        input.shape.assert_has_rank(1)
        separator.shape.assert_has_rank(0)
        return [matrix(None, 2), vector(None), vector(2)]

    def rows(self, input: Array, cut: Callable[[bytes], list[bytes]]) -> tuple[Array, Array, Array]:
        rows = [cut(item) for item in text.elements(input)]
        places = [(i, j) for i, row in enumerate(rows) for j in range(len(row))]
        shape = np.array([len(rows), max(map(len, rows), default=0)], np.int64)
        parts = text_of(part for row in rows for part in row)
        return np.array(places, np.int64).reshape(-1, 2), parts, shape


def _only_separator(separator: Any) -> bytes:
    if np.ndim(text_array(separator)):
        raise errors.invalid(f"delimiter must be a scalar, got shape {np.shape(separator)}")
    return text_item(separator)


class StringSplit(Splitter):
    """Strings split at every byte of the delimiter (between all bytes if it is empty)"""

    signature = "input: string, delimiter: string -> indices: int64, values: string, shape: int64"
    skip_empty: bool = True

    def numpy(self, input: Array, delimiter: Array) -> tuple[Array, Array, Array]:
        separator = _only_separator(delimiter)
        return self.rows(input, lambda item: self._cut(item, separator))

    def _cut(self, item: bytes, separator: bytes) -> list[bytes]:
        if not item:
            return []  # also with skip_empty=False
        if not separator:
            return _single_bytes(item)
        parts = re.split(b"[" + re.escape(separator) + b"]", item)
        return [part for part in parts if part] if self.skip_empty else parts


def _single_bytes(item: bytes) -> list[bytes]:
    return [item[i : i + 1] for i in range(len(item))]


@public("string_split")
def string_split(
    source: Any,
    sep: Any = None,
    skip_empty: bool = True,
    delimiter: Any = None,
    result_type: str = "SparseTensor",
    name: str | None = None,
) -> SparseTensor:
    """The words of each string of a vector.

    Args:
        source: a vector of strings.
        sep: the separators, one per byte; a space if None. If empty, every byte is a word.
        skip_empty: whether empty words are dropped.
        delimiter: the old name of `sep`.
        result_type: "SparseTensor".
        name: the name of the node.

    Returns:
        A SparseTensor [strings, words].

    Example:
        >>> words = tf.string_split(["hello world", "bye"])
        >>> sess.run(words).values.tolist()
        [b'hello', b'world', b'bye']
    """
    _check_result_type(result_type)
    given = delimiter if sep is None else sep
    separator = convert_to_tensor(" " if given is None else given, dtypes.string)
    op = StringSplit(skip_empty=skip_empty)
    return SparseTensor(*op(convert_to_tensor(source, dtypes.string), separator, name=name))


def _check_result_type(result_type: str) -> None:
    if result_type != "SparseTensor":
        raise ValueError(f"result_type must be 'SparseTensor', got {result_type!r}")


class StringSplitV2(Splitter):
    """Strings split at a separator as by Python's `split` (at white space if it is empty)"""

    signature = "input: string, sep: string -> indices: int64, values: string, shape: int64"
    maxsplit: int = -1

    def numpy(self, input: Array, sep: Array) -> tuple[Array, Array, Array]:
        separator = _only_separator(sep)
        return self.rows(input, lambda item: item.split(separator or None, self.maxsplit))


@public("strings.split")
def string_split_v2(
    input: Any = None,
    sep: Any = None,
    maxsplit: int = -1,
    result_type: str = "SparseTensor",
    source: Any = None,
    name: str | None = None,
) -> SparseTensor:
    """The parts of each string of a vector between whole separators (white space if None)."""
    _check_result_type(result_type)
    strings = convert_to_tensor(source if input is None else input, dtypes.string)
    separator = convert_to_tensor("" if sep is None else sep, dtypes.string)
    return SparseTensor(*StringSplitV2(maxsplit=maxsplit)(strings, separator, name=name))


@public("strings.bytes_split")
def bytes_split(input: Any, name: str | None = None) -> SparseTensor:
    """The single bytes of each string of a vector."""
    return string_split(input, sep="", name=name)


class Substr(StringOp):
    """y[…] = `len` bytes (or characters) of x[…] from `pos`; negative: from the end"""

    signature = "input: string, pos: T, len: T -> output: string; T: index"
    unit: str = "BYTE"

    def shape(self, input: Tensor, pos: Tensor, len: Tensor) -> TensorShape:
        if not pos.shape.is_compatible_with(len.shape):
            raise ValueError(f"pos and len shapes must match: {pos.shape} vs. {len.shape}")
        return broadcast_shapes(input.shape, pos.shape)

    def numpy(self, input: Array, pos: Array, len: Array) -> Array:
        if np.shape(pos) != np.shape(len):
            raise errors.invalid(
                f"pos and len shapes must match: {np.shape(pos)} vs. {np.shape(len)}"
            )
        strings, starts, counts = np.broadcast_arrays(text_array(input), pos, len)
        cut = _characters if self.unit == "UTF8_CHAR" else _bytes
        parts = map(cut, strings.ravel(), starts.ravel().tolist(), counts.ravel().tolist())
        return text_of(parts, strings.shape)


def _bytes(item: bytes, start: int, count: int) -> bytes:
    if not -len(item) <= start <= len(item):
        raise errors.invalid(f"pos {start} out of range for string {item!r}")
    first = start + len(item) if start < 0 else start
    return item[first : first + max(count, 0)]


def _characters(item: bytes, start: int, count: int) -> bytes:
    whole = _characters_of(item)
    if not -len(whole) <= start <= len(whole):
        raise errors.invalid(f"pos {start} out of range for string {item!r}")
    first = start + len(whole) if start < 0 else start
    return whole[first : first + max(count, 0)].encode(errors="surrogateescape")


@public("substr", "strings.substr")
def substr(input: Any, pos: Any, len: Any, name: str | None = None, unit: str = "BYTE") -> Tensor:
    """`len` bytes (`unit="UTF8_CHAR"`: characters) of each string, from `pos` on."""
    return Substr(unit=_unit(unit))(input, pos, len, name=name)


def _unit(unit: str) -> str:
    if unit not in ("BYTE", "UTF8_CHAR"):
        raise ValueError(f"unit must be 'BYTE' or 'UTF8_CHAR', got {unit!r}")
    return unit


class StringLength(StringOp):
    """y[…] = the number of bytes (or characters) of x[…]"""

    signature = "input: string -> output: int32"
    unit: str = "BYTE"

    def shape(self, input: Tensor) -> TensorShape:
        return input.shape

    def numpy(self, input: Array) -> Array:
        if self.unit == "BYTE":
            return text.numbers(len, input, np.int32)
        return text.numbers(_character_count, input, np.int32)


def _character_count(item: bytes) -> int:
    """The number of bytes that are not continuation bytes of UTF-8."""
    return sum(byte & 0xC0 != 0x80 for byte in item)


@public("string_length", "strings.length")
def string_length(input: Any, name: str | None = None, unit: str = "BYTE") -> Tensor:
    """The length of each string in bytes (`unit="UTF8_CHAR"`: characters)."""
    return StringLength(unit=_unit(unit))(input, name=name)


class StringStrip(StringMap):
    """y = x without white space at its ends"""

    def numpy(self, input: Array) -> Array:
        return text.mapped(bytes.strip, input)


@public("string_strip", "strings.strip")
def string_strip(input: Any, name: str | None = None) -> Tensor:
    """Strings without the white space at their ends."""
    return StringStrip()(input, name=name)


class CaseMap(StringMap, abstract=True):
    """Converts letters to one case: ASCII ones, or all of UTF-8."""

    encoding: str = ""

    def shape(self, input: Tensor) -> TensorShape:
        if self.encoding not in ("", "utf-8"):
            raise ValueError(f"encoding must be '' or 'utf-8', got {self.encoding!r}")
        return input.shape

    def cased(self, input: Array, ascii: Callable[[bytes], bytes], wide: Any) -> Array:
        if not self.encoding:
            return text.mapped(ascii, input)
        return text.mapped(lambda item: wide(item.decode(errors="replace")).encode(), input)


class StringLower(CaseMap):
    """y = x in lower case"""

    def numpy(self, input: Array) -> Array:
        return self.cased(input, bytes.lower, str.lower)


class StringUpper(CaseMap):
    """y = x in upper case"""

    def numpy(self, input: Array) -> Array:
        return self.cased(input, bytes.upper, str.upper)


@public("strings.lower")
def string_lower(input: Any, encoding: str = "", name: str | None = None) -> Tensor:
    """Strings in lower case: ASCII letters, or with encoding "utf-8" all letters."""
    return StringLower(encoding=encoding)(input, name=name)


@public("strings.upper")
def string_upper(input: Any, encoding: str = "", name: str | None = None) -> Tensor:
    """Strings in upper case: ASCII letters, or with encoding "utf-8" all letters."""
    return StringUpper(encoding=encoding)(input, name=name)


def _characters_of(item: bytes) -> str:
    """Decode UTF-8; invalid bytes are preserved for encoding."""
    return item.decode(errors="surrogateescape")


def _compiled(pattern: Any) -> re.Pattern[str]:
    """Compile a pattern over characters, in which `\\w`, `\\d` and `\\s` match only ASCII."""
    source = text_item(pattern)
    try:
        return re.compile(_characters_of(source), re.ASCII)
    except re.error as error:
        raise errors.invalid(f"Invalid pattern: {source!r}, error: {error}") from error


class RegexReplace(StringOp):
    r"""y = x with matches of a pattern rewritten; `\1` is the first group, `\0` the match"""

    signature = "input: string, pattern: string, rewrite: string -> output: string"
    replace_global: bool = True

    def shape(self, input: Tensor, pattern: Tensor, rewrite: Tensor) -> TensorShape:
        pattern.shape.assert_has_rank(0)
        rewrite.shape.assert_has_rank(0)
        return input.shape

    def numpy(self, input: Array, pattern: Array, rewrite: Array) -> Array:
        expression = _compiled(pattern)
        template = _characters_of(text_item(rewrite))
        count = 0 if self.replace_global else 1

        def rewritten(item: bytes) -> bytes:
            whole = expression.sub(
                lambda match: _filled(template, match), _characters_of(item), count
            )
            return whole.encode(errors="surrogateescape")

        return text.mapped(rewritten, input)


def _filled(template: str, match: re.Match[str]) -> str:
    """A rewrite with its groups substituted; only digits and the backslash can be escaped."""
    return re.sub(
        r"\\([0-9\\])",
        lambda mark: "\\" if mark[1] == "\\" else match[int(mark[1])] or "",
        template,
    )


@public("regex_replace", "strings.regex_replace")
def regex_replace(
    input: Any, pattern: Any, rewrite: Any, replace_global: bool = True, name: str | None = None
) -> Tensor:
    r"""Strings with the matches (or the first one) of `pattern` replaced by `rewrite`."""
    return RegexReplace(replace_global=replace_global)(input, pattern, rewrite, name=name)


class RegexFullMatch(StringOp):
    """y = whether all of x matches a pattern"""

    signature = "input: string, pattern: string -> output: bool"

    def shape(self, input: Tensor, pattern: Tensor) -> TensorShape:
        pattern.shape.assert_has_rank(0)
        return input.shape

    def numpy(self, input: Array, pattern: Array) -> Array:
        matches = _compiled(pattern).fullmatch
        return text.numbers(lambda item: matches(_characters_of(item)) is not None, input, bool)


@public("strings.regex_full_match")
def regex_full_match(input: Any, pattern: Any, name: str | None = None) -> Tensor:
    """Whether each string as a whole matches `pattern`."""
    return RegexFullMatch()(input, pattern, name=name)


class ReduceJoin(StringOp):
    """Strings joined along the first of the axes, the results along the second, and so on"""

    signature = "inputs: string, reduction_indices: int32 -> output: string"
    keep_dims: bool = False
    separator: str = ""

    def shape(self, inputs: Tensor, reduction_indices: Tensor) -> TensorShape:
        sizes, axes = inputs.shape.sizes, constant_value(reduction_indices)
        if sizes is None or axes is None:
            kept = sizes is not None and self.keep_dims
            return unknown_shape(len(sizes) if kept else None)  # pyright: ignore[reportArgumentType] - kept implies sizes
        reduced = _join_axes(axes, sizes, "index")
        if self.keep_dims:
            return TensorShape.of(tuple(1 if i in reduced else s for i, s in enumerate(sizes)))
        return TensorShape.of(tuple(s for i, s in enumerate(sizes) if i not in reduced))

    def numpy(self, inputs: Array, reduction_indices: Array) -> Array:
        array = text_array(inputs)
        axes = _join_axes(reduction_indices, array.shape, "dimension")
        kept = [axis for axis in range(array.ndim) if axis not in axes]
        moved = array.transpose(kept + axes[::-1])
        rows = moved.reshape(-1, int(np.prod([array.shape[a] for a in axes], dtype=np.int64)))
        joined = text_of(map(as_bytes(self.separator).join, rows.tolist()))
        if self.keep_dims:
            return joined.reshape([1 if a in axes else s for a, s in enumerate(array.shape)])
        return joined.reshape([array.shape[axis] for axis in kept])


def _join_axes(axes: Array, sizes: Sequence[Size], noun: str) -> list[int]:
    """The axes in order, in [0, rank); all, the last one first, if none are given."""
    rank = len(sizes)
    result: list[int] = []
    for axis in np.atleast_1d(axes).tolist() or range(rank)[::-1]:
        if not -rank <= axis < rank:
            raise ValueError(f"Invalid reduction dimension {axis} for input with {rank} dimensions")
        if axis % rank in result:
            raise ValueError(f"Duplicate reduction {noun} {axis % rank}")
        if sizes[axis] == 0:
            raise ValueError(f"Cannot reduce dimension {axis} with size 0")
        result.append(axis % rank)
    return result


@public("reduce_join", "strings.reduce_join")
def reduce_join(
    inputs: Any,
    axis: Any = None,
    keep_dims: bool | None = None,
    separator: str = "",
    name: str | None = None,
    reduction_indices: Any = None,
    keepdims: bool | None = None,
) -> Tensor:
    """Strings joined along axes (all, in order, if None); `[1, 0]` and `[0, 1]` differ.

    Args:
        inputs: a string tensor.
        axis, reduction_indices: the axes to join along, in this order; by the new or old name.
        keep_dims, keepdims: whether reduced axes are kept, with size 1.
        separator: the separator between strings.
        name: the name of the node.

    Returns:
        A string tensor.

    Example:
        >>> sess.run(tf.reduce_join([["a", "b"], ["c", "d"]], 1, separator="-"))
        array([b'a-b', b'c-d'], dtype=object)
    """
    strings = convert_to_tensor(inputs, dtypes.string)
    given = axis if reduction_indices is None else reduction_indices
    if given is None or (isinstance(given, list | tuple) and not given):
        given = np.zeros(0, np.int32)  # all axes
    keep = bool(keep_dims if keepdims is None else keepdims)
    return ReduceJoin(keep_dims=keep, separator=separator)(strings, given, name=name)


class UnsortedSegmentJoin(StringOp):
    """y[s] = the strings of segment s, joined by a separator"""

    signature = (
        "inputs: string, segment_ids: I, num_segments: J -> output: string; I: index, J: index"
    )
    separator: str = ""

    def shape(self, inputs: Tensor, segment_ids: Tensor, num_segments: Tensor) -> TensorShape:
        rank = segment_ids.shape.rank
        count = constant_value(num_segments)
        if rank is None:
            return unknown_shape()
        rest = inputs.shape.with_rank_at_least(rank)[rank:]
        return vector(None if count is None else int(count)).concatenate(rest)

    def numpy(self, inputs: Array, segment_ids: Array, num_segments: Array) -> Array:
        strings, ids = text_array(inputs), np.asarray(segment_ids)
        rest = strings.shape[ids.ndim :]
        rows = strings.reshape(ids.size, int(np.prod(rest)))
        glue, flat = as_bytes(self.separator), ids.ravel()
        if np.any((flat < 0) | (flat >= num_segments)):
            message = f"segment_ids must be in [0, {int(num_segments)}): {flat.tolist()}"
            raise errors.invalid(message)
        groups = [rows[flat == segment] for segment in range(int(num_segments))]
        # No separator follows leading empty strings.
        columns = (column for group in groups for column in group.T.tolist())
        joined = (glue.join(dropwhile(lambda part: not part, column)) for column in columns)
        return text_of(joined, (int(num_segments), *rest))


@public("strings.unsorted_segment_join")
def unsorted_segment_join(
    inputs: Any, segment_ids: Any, num_segments: Any, separator: str = "", name: str | None = None
) -> Tensor:
    """Strings joined by the segment they belong to."""
    return UnsortedSegmentJoin(separator=separator)(inputs, segment_ids, num_segments, name=name)


class UnicodeTranscode(StringMap):
    """y = x in another Unicode encoding"""

    input_encoding: str
    output_encoding: str
    errors: str = "replace"
    replacement_char: int = 65533
    replace_control_characters: bool = False

    def numpy(self, input: Array) -> Array:
        return text.mapped(self._transcoded, input)

    def _transcoded(self, item: bytes) -> bytes:
        whole = self._decoded(item)
        if self.replace_control_characters:
            whole = re.sub("[\x00-\x1f]", chr(self.replacement_char), whole)
        return whole.encode(_codec(self.output_encoding), "ignore")

    def _decoded(self, item: bytes) -> str:
        try:
            return item.decode(_codec(self.input_encoding))
        except UnicodeDecodeError as error:
            if self.errors == "strict":
                raise errors.invalid(
                    f"Invalid formatting on input string {item!r}: {error}"
                ) from error
        handled = item.decode(_codec(self.input_encoding), self.errors)
        return handled.replace("\ufffd", chr(self.replacement_char))


def _codec(encoding: str) -> str:
    """Python's name of a codec: wide encodings are big-endian without a byte order mark."""
    wide = {"UTF-16-BE": "utf-16-be", "UTF-32-BE": "utf-32-be", "UTF-16": "utf-16-be"}
    return wide.get(encoding.upper(), encoding)


@public("strings.unicode_transcode")
def unicode_transcode(
    input: Any,
    input_encoding: str,
    output_encoding: str,
    errors: str = "replace",
    replacement_char: int = 65533,
    replace_control_characters: bool = False,
    name: str | None = None,
) -> Tensor:
    """Strings in another encoding; `errors` is "strict", "replace" or "ignore"."""
    if output_encoding not in ("UTF-8", "UTF-16-BE", "UTF-32-BE"):
        raise ValueError(
            f"output_encoding must be UTF-8, UTF-16-BE or UTF-32-BE: {output_encoding}"
        )
    op = UnicodeTranscode(
        input_encoding=input_encoding,
        output_encoding=output_encoding,
        errors=errors,
        replacement_char=replacement_char,
        replace_control_characters=replace_control_characters,
    )
    return op(input, name=name)
