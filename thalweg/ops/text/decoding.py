"""Conversions between bytes and numbers: decimal text, raw memory, CSV records, base64.

`as_string` and `encode_base64` write what `string_to_number` and `decode_base64` read.
"""

from __future__ import annotations

import base64
import re
import sys
import zlib
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

import numpy as np

from thalweg import errors
from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.node import Tensor
from thalweg.graph.shapes import TensorShape, vector
from thalweg.ops.text import text
from thalweg.ops.text.strings import StringMap, StringOp
from thalweg.platform.arrays import Array
from thalweg.platform.compat import as_bytes
from thalweg.public import public

_NUMBER = re.compile(
    rb"\s*[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|inf(inity)?|nan)\s*", re.I
)
_HEXADECIMAL = re.compile(rb"\s*[+-]?0x[0-9a-f]*\.?[0-9a-f]+(p[+-]?\d+)?\s*", re.I)
_INTEGER = re.compile(rb"\s*[+-]?\d+\s*")


def parse_number(item: bytes, kind: DType) -> Any:
    """Parse a number of the given dtype; None if the string is invalid or out of range."""
    if kind.is_integer:
        number = int(item) if _INTEGER.fullmatch(item) else None
        return number if number is not None and kind.min <= number <= kind.max else None
    if _NUMBER.fullmatch(item):
        return kind.as_numpy_dtype(float(item))
    return (
        kind.as_numpy_dtype(float.fromhex(item.decode())) if _HEXADECIMAL.fullmatch(item) else None
    )


class StringToNumber(StringOp):
    """y = each string parsed as a number"""

    signature = "string_tensor: string -> output: out_type; out_type: float32|float64|int32|int64"
    out_type: DType = dtypes.float32

    def shape(self, string_tensor: Tensor) -> TensorShape:
        return string_tensor.shape

    def numpy(self, string_tensor: Array) -> Array:
        return text.numbers(self._number, string_tensor, self.out_type.as_numpy_dtype)

    def _number(self, item: bytes) -> Any:
        number = parse_number(item, self.out_type)
        if number is None:
            raise errors.invalid(
                f"StringToNumberOp could not correctly convert string: "
                f"{item.decode(errors='replace')}"
            )
        return number


@public("string_to_number", "strings.to_number")
def string_to_number(
    string_tensor: Any = None,
    out_type: Any = dtypes.float32,
    name: str | None = None,
    input: Any = None,
) -> Tensor:
    """Parse strings as numbers.

    Args:
        string_tensor: strings of any shape.
        out_type: float32, float64, int32 or int64.
        name: the name of the node.
        input: another name of `string_tensor`.

    Returns:
        A tensor of the same shape.

    Raises:
        InvalidArgumentError: if a string is not a number.

    Example:
        >>> sess.run(tf.string_to_number(["1.5", "-2"]))
        array([ 1.5, -2. ], dtype=float32)
    """
    strings = string_tensor if input is None else input
    return StringToNumber(out_type=as_dtype(out_type))(strings, name=name)


def _printed(form: str, number: float) -> str:
    """A number as printed by C, which pads only finite numbers with zeros."""
    return (form if isfinite(number) else form.replace("%0", "%", 1)) % number


class AsString(StringOp):
    """y = each number in decimal, by the rules of C's printf"""

    signature = "input: T -> output: string; T: numeric|bool"
    precision: int = -1
    scientific: bool = False
    shortest: bool = False
    width: int = -1
    fill: str = ""

    def shape(self, input: Tensor) -> TensorShape:
        return input.shape

    def numpy(self, input: Array) -> Array:
        array = np.asarray(input)
        write = self._writer(as_dtype(array.dtype))
        return text.text_of((write(item).encode() for item in array.ravel().tolist()), array.shape)

    def _writer(self, kind: DType) -> Callable[[Any], str]:
        self._check(kind)
        if kind.is_bool:
            return lambda item: "true" if item else "false"
        flags = "%" + self.fill + (str(self.width) if self.width > -1 else "")
        if kind.is_integer:
            return lambda item: f"{flags}d" % item
        digits = f".{self.precision}" if self.precision > -1 else ""
        form = flags + digits + ("e" if self.scientific else "g" if self.shortest else "f")
        if kind.is_complex:
            return lambda item: f"({_printed(form, item.real)},{_printed(form, item.imag)})"
        return lambda item: _printed(form, float(item))

    def _check(self, kind: DType) -> None:
        smooth = kind.is_floating or kind.is_complex
        problems = {
            "Cannot select both scientific and shortest notation": self.scientific
            and self.shortest,
            "Fill string must be one or fewer characters": len(self.fill) > 1,
            "Fill argument not supported": self.fill not in ("", " ", "+", "-", "0", "#"),
            "scientific and shortest format not supported for this datatype": not smooth
            and (self.scientific or self.shortest),
            "precision not supported for this datatype": not smooth and self.precision > -1,
            "width and fill not supported for bool": kind.is_bool
            and (self.width > -1 or bool(self.fill)),
        }
        for message, found in problems.items():
            if found:
                raise errors.invalid(f"{message} ({self})")


@public("as_string", "strings.as_string", "dtypes.as_string")
def as_string(
    input: Any,
    precision: int = -1,
    scientific: bool = False,
    shortest: bool = False,
    width: int = -1,
    fill: str = "",
    name: str | None = None,
) -> Tensor:
    """Numbers as strings: `%f`, `%e` if scientific, `%g` if shortest, padded to `width`."""
    op = AsString(
        precision=precision, scientific=scientific, shortest=shortest, width=width, fill=fill
    )
    return op(input, name=name)


class EncodeBase64(StringMap):
    """y = x in web-safe base64"""

    pad: bool = False

    def numpy(self, input: Array) -> Array:
        return text.mapped(self._encoded, input)

    def _encoded(self, item: bytes) -> bytes:
        encoded = base64.urlsafe_b64encode(item)
        return encoded if self.pad else encoded.rstrip(b"=")


@public("encode_base64", "io.encode_base64")
def encode_base64(input: Any, pad: bool = False, name: str | None = None) -> Tensor:
    """Strings in web-safe base64, with `=` at the end only if `pad`.

    Args:
        input: a string tensor.
        pad: whether to pad the last group with `=`.
        name: the name of the node.

    Returns:
        A string tensor of the same shape.

    Example:
        >>> sess.run(tf.encode_base64(["hello", "hi"]))
        array([b'aGVsbG8', b'aGk'], dtype=object)
    """
    return EncodeBase64(pad=pad)(input, name=name)


class DecodeBase64(StringMap):
    """y = x decoded from web-safe base64"""

    def numpy(self, input: Array) -> Array:
        return text.mapped(_decoded_base64, input)


def _decoded_base64(item: bytes) -> bytes:
    bare = item.rstrip(b"=") if len(item) % 4 == 0 else item
    if len(bare) % 4 == 1:
        raise ValueError(f"Base64 string length ({len(bare)}) may not be 1 modulo 4: {item!r}")
    if re.search(rb"[^A-Za-z0-9_-]", bare) or len(item) - len(bare) > 2:
        raise ValueError(f"Invalid character found in base64: {item!r}")
    return base64.urlsafe_b64decode(bare + b"=" * (-len(bare) % 4))


@public("decode_base64", "io.decode_base64")
def decode_base64(input: Any, name: str | None = None) -> Tensor:
    """Decode web-safe base64 strings; padding is optional.

    Args:
        input: a string tensor.
        name: the name of the node.

    Returns:
        A string tensor of the same shape.

    Example:
        >>> sess.run(tf.decode_base64("aGVsbG8"))
        b'hello'
    """
    return DecodeBase64()(input, name=name)


class DecodeRaw(StringOp):
    """y[…, :] = the bytes of x[…], reinterpreted as numbers"""

    signature = "bytes: string -> output: out_type; out_type: real|complex|bool"
    out_type: DType
    little_endian: bool = True

    def shape(self, bytes: Tensor) -> TensorShape:
        return bytes.shape.concatenate(vector(None))

    def numpy(self, bytes: Array) -> Array:
        strings = text.text_array(bytes)
        items, kind = text.elements(strings), np.dtype(self.out_type.as_numpy_dtype)
        if not items:
            return np.zeros((*strings.shape, 0), kind)
        self._check([len(item) for item in items], kind.itemsize)
        numbers = np.frombuffer(b"".join(items), kind)
        if self.little_endian != (sys.byteorder == "little"):
            numbers = numbers.byteswap()
        return numbers.reshape(*strings.shape, -1 if numbers.size else 0).copy()

    def _check(self, lengths: list[int], width: int) -> None:
        for position, length in enumerate(lengths):
            if length != lengths[0]:
                raise errors.invalid(
                    "DecodeRaw requires input strings to all be the same size, but element "
                    f"{position} has size {lengths[0]} != {length}"
                )
        if lengths[0] % width:
            raise errors.invalid(
                f"Input to DecodeRaw has length {lengths[0]} that is not a multiple of {width}, "
                f"the size of {self.out_type.name}"
            )


@public("decode_raw", "io.decode_raw")
def decode_raw(
    input_bytes: Any = None,
    out_type: Any = None,
    little_endian: bool = True,
    name: str | None = None,
    bytes: Any = None,
) -> Tensor:
    r"""The bytes of strings, reinterpreted as numbers.

    Args:
        input_bytes: strings of one length, of any shape.
        out_type: the dtype of the numbers.
        little_endian: whether the lowest byte of a number comes first.
        name: the name of the node.
        bytes: the old name of `input_bytes`.

    Returns:
        A tensor with one more axis, over the numbers of a string.

    Raises:
        InvalidArgumentError: if the lengths differ, or are not multiples of a number's size.

    Example:
        >>> sess.run(tf.decode_raw(b"\x01\x00\x02\x00", tf.int16))
        array([1, 2], dtype=int16)
    """
    op = DecodeRaw(out_type=as_dtype(out_type), little_endian=little_endian)
    return op(input_bytes if bytes is None else bytes, name=name)


class DecodeCompressed(StringMap):
    """y = x decompressed by zlib or gzip, or unchanged"""

    signature = "bytes: string -> output: string"
    compression_type: str = ""

    def shape(self, bytes: Tensor) -> TensorShape:
        if self.compression_type not in _WINDOW_BITS:
            raise ValueError(f"compression_type must be ZLIB, GZIP or '': {self.compression_type}")
        return bytes.shape

    def numpy(self, bytes: Array) -> Array:
        return text.mapped(self._plain, bytes)

    def _plain(self, item: Any) -> Any:
        if not self.compression_type:
            return item
        try:
            return zlib.decompress(item, _WINDOW_BITS[self.compression_type])
        except zlib.error as error:
            raise errors.DataLossError(None, None, f"cannot decompress: {error}") from error


#: zlib's `wbits` for each type of header.
_WINDOW_BITS = {"": 0, "ZLIB": zlib.MAX_WBITS, "GZIP": zlib.MAX_WBITS | 16}


@public("decode_compressed", "io.decode_compressed")
def decode_compressed(bytes: Any, compression_type: str = "", name: str | None = None) -> Tensor:
    """Strings decompressed; `compression_type` is "ZLIB", "GZIP" or "" for none."""
    return DecodeCompressed(compression_type=compression_type)(bytes, name=name)


class DecodeCSV(StringOp):
    """The fields of CSV records, one tensor per field"""

    signature = "records: string, record_defaults: [OUT_TYPE] -> output: [OUT_TYPE]"
    field_delim: str = ","
    use_quote_delim: bool = True
    na_value: str = ""
    select_cols: tuple[int, ...] = ()

    def shape(self, records: Tensor, record_defaults: list[Tensor]) -> list[TensorShape]:
        for default in record_defaults:
            if default.shape.rank not in (None, 0, 1):
                raise ValueError(f"Shape of a default must be scalar or vector: {default.shape}")
            if (default.shape.num_elements() or 0) > 1:
                raise ValueError(
                    f"Shape of a default must be a length-0 or length-1 vector: {default.shape}"
                )
        return [records.shape] * len(record_defaults)

    def numpy(self, records: Array, record_defaults: list[Array]) -> list[Array]:
        strings = text.text_array(records)
        defaults = [np.asarray(d).reshape(-1) for d in record_defaults]
        rows = [self._row(i, item, len(defaults)) for i, item in enumerate(strings.ravel())]
        return [
            self._column([row[i] for row in rows], i, default).reshape(strings.shape)
            for i, default in enumerate(defaults)
        ]

    def _row(self, number: int, record: bytes, count: int) -> list[bytes]:
        fields = fields_of(record, as_bytes(self.field_delim), self.use_quote_delim)
        if self.select_cols:
            fields = [fields[column] for column in self.select_cols if column < len(fields)]
        if len(fields) != count:
            raise errors.invalid(f"Expect {count} fields but have {len(fields)} in record {number}")
        return fields

    def _column(self, fields: list[bytes], column: int, default: Array) -> Array:
        values = [self._value(f, row, column, default) for row, f in enumerate(fields)]
        return text.text_of(values) if default.dtype == object else np.array(values, default.dtype)

    def _value(self, field: bytes, row: int, column: int, default: Array) -> Any:
        if not field or field == as_bytes(self.na_value):
            if not default.size:
                raise errors.invalid(f"Field {column} is required but missing in record {row}!")
            return default[0]
        if default.dtype == object:
            return field
        kind = as_dtype(default.dtype)
        value = parse_number(field, kind)
        if value is None:
            raise errors.invalid(
                f"Field {column} in record {row} is not a valid {_spoken(kind)}: "
                f"{field.decode(errors='replace')}"
            )
        return value


def _spoken(kind: DType) -> str:
    return {"float32": "float", "float64": "double"}.get(kind.name, kind.name)


def fields_of(record: bytes, delimiter: bytes, quotes: bool) -> list[bytes]:
    """The fields of one CSV record; a quoted field may contain delimiters, `""` is a quote."""
    if not quotes:
        return record.split(delimiter)
    fields: list[bytes] = []
    at = 0
    while at <= len(record):
        read = _quoted_field if record[at : at + 1] == b'"' else _plain_field
        field, at = read(record, at, delimiter)
        fields.append(field)
    return fields


def _plain_field(record: bytes, start: int, delimiter: bytes) -> tuple[bytes, int]:
    end = record.find(delimiter, start)
    field = record[start:] if end < 0 else record[start:end]
    if re.search(rb'["\r\n]', field):
        raise errors.invalid(f"Unquoted fields cannot have quotes/CRLFs inside: {field!r}")
    return field, (len(record) if end < 0 else end) + 1


def _quoted_field(record: bytes, start: int, delimiter: bytes) -> tuple[bytes, int]:
    match = re.compile(rb'"((?:[^"]|"")*)"').match(record, start)
    after = -1 if match is None else match.end()
    if match is None or (after < len(record) and record[after : after + 1] != delimiter):
        raise errors.invalid(
            f"Quoted field has to end with quote followed by delim or end: {record[start:]!r}"
        )
    return match[1].replace(b'""', b'"'), after + 1


@public("decode_csv", "io.decode_csv")
def decode_csv(
    records: Any,
    record_defaults: Sequence[Any],
    field_delim: str = ",",
    use_quote_delim: bool = True,
    name: str | None = None,
    na_value: str = "",
    select_cols: Sequence[int] | None = None,
) -> list[Tensor]:
    """The fields of lines of comma-separated values, one tensor per column.

    Args:
        records: lines, as strings of any shape.
        record_defaults: for each column the value of empty fields, which also sets the dtype; a
            dtype or an empty tensor makes the field required.
        field_delim: the character between fields.
        use_quote_delim: whether fields may be in double quotes.
        name: the name of the node.
        na_value: the text of a missing value, which is treated as an empty field.
        select_cols: the indices of the selected columns, ascending.

    Returns:
        A list of tensors of the shape of `records`.

    Raises:
        InvalidArgumentError: if a line has another number of fields, or a field is not a number.

    Example:
        >>> age, name = tf.decode_csv(["7,Ann", ",Bob"], record_defaults=[[0], [""]])
        >>> sess.run([age, name])
        [array([7, 0], dtype=int32), array([b'Ann', b'Bob'], dtype=object)]
    """
    columns = tuple(select_cols or ())
    if columns and (list(columns) != sorted(set(columns)) or columns[0] < 0):
        raise ValueError("select_cols is not strictly increasing, or has negative columns.")
    if columns and len(columns) != len(record_defaults):
        raise ValueError("Length of select_cols and record_defaults do not match.")
    if len(as_bytes(field_delim)) != 1:
        raise ValueError(f"field_delim must be a single character, got {field_delim!r}")
    op = DecodeCSV(
        field_delim=field_delim,
        use_quote_delim=use_quote_delim,
        na_value=na_value,
        select_cols=columns,
    )
    defaults = [convert_to_tensor(default) for default in record_defaults]
    return op(convert_to_tensor(records, dtypes.string), defaults, name=name)
