"""Formatting of values for `Print`, `print`, `Assert` and `strings.format`.

`summarize` formats the first elements of an array in TensorFlow's notation; `Print` forwards a
tensor and writes others to standard error when it runs.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from thalweg import errors
from thalweg.graph.analysis.effects import Resource, writes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.likes import TensorStructure, UserObject
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, scalar
from thalweg.ops.core.context import Context
from thalweg.ops.text import text
from thalweg.platform import tf_logging
from thalweg.platform.arrays import Array
from thalweg.platform.dtype_traits import is_float
from thalweg.platform.files import gfile
from thalweg.public import public

_DEFAULT_ENTRIES = 3


def summarize(value: Any, limit: int | None = _DEFAULT_ENTRIES) -> str:
    """The first `limit` elements (all if None or negative): `1 2 3`, `[1 2][3 4]`, `7 8...`."""
    array = np.asarray(value) if not isinstance(value, bytes | str) else text.text_array(value)
    shown = array.size if limit is None or limit < 0 else min(limit, array.size)
    words = [_word(item) for item in itertools.islice(array.ravel(), shown)]
    body = " ".join(words) if array.ndim < 2 else _rows(words, array.shape)
    return body + "..." * (array.size > shown)


def _rows(words: list[str], shape: tuple[int, ...]) -> str:
    """Words in brackets, one pair for each slice along the first axes."""
    if len(shape) == 1:
        return " ".join(words) + "..." * (0 < len(words) < shape[0])
    step = int(np.prod(shape[1:]))
    parts = [words[i * step : (i + 1) * step] for i in range(shape[0])]
    return "".join(f"[{_rows(part, shape[1:])}]" for part in parts if part)


def _word(item: Any) -> str:
    if isinstance(item, bytes):
        return item.decode(errors="backslashreplace")
    kind = np.asarray(item).dtype.kind
    if kind == "b":
        return str(int(item))
    if kind == "c":
        return f"({_real_word(item.real)},{_real_word(item.imag)})"
    return _real_word(item) if is_float(np.asarray(item).dtype) else str(item)


def _real_word(item: Any) -> str:
    """A number with six digits if they are exact, else nine."""
    short = f"{float(item):.6g}"
    return short if type(item)(short) == item or item != item else f"{float(item):.9g}"


class PrintOp(Op, name="Print"):
    """y = input; writes `data` to standard error each time (the first `first_n` times)."""

    signature = "input: T, data: [U] -> output: T"
    effects = (writes(Resource.CONSOLE),)
    stateful = True
    host_only = True
    message: str = ""
    first_n: int = -1
    summarize: int = _DEFAULT_ENTRIES

    def shape(self, input: Tensor, data: list[Tensor]) -> TensorShape:
        return input.shape

    def kernel(self, context: Context, input: Array, data: list[Array]) -> Array:
        calls = context.state(lambda: itertools.count())
        if self.first_n < 0 or next(calls) < self.first_n:
            shown = "".join(f"[{summarize(value, self.summarize)}]" for value in data)
            sys.stderr.write(f"{self.message}{shown}\n")
        return input

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [dy, *[None] * (len(node.inputs) - 1)]


@public("Print")
def Print(
    input_: Any,
    data: Sequence[Any],
    message: str | None = None,
    first_n: int | None = None,
    summarize: int | None = None,
    name: str | None = None,
) -> Tensor:
    """`input_`, after writing tensors to standard error; it prints only if its result is used.

    Args:
        input_: the tensor to pass on.
        data: a list of tensors to write.
        message: a text to write first.
        first_n: the maximum number of times to write; None for no maximum.
        summarize: how many elements of each tensor are written; 3 if None.
        name: the name of the node.

    Returns:
        A tensor of the value of `input_`.

    Example:
        >>> x = tf.constant([1.0, 2.0])
        >>> sess.run(tf.Print(x, [tf.reduce_sum(x)], "sum: "))
        array([1., 2.], dtype=float32)
    """
    op = PrintOp(
        message=message or "",
        first_n=-1 if first_n is None else first_n,
        summarize=_DEFAULT_ENTRIES if summarize is None else summarize,
    )
    return op(input_, list(data), name=name)


class StringFormat(Op):
    """The template with each placeholder replaced by a summary of a tensor."""

    signature = "inputs: [T] -> output: string"
    host_only = True
    not_differentiable = True
    template: str = "%s"
    placeholder: str = "%s"
    summarize: int = _DEFAULT_ENTRIES

    def shape(self, inputs: list[Tensor]) -> TensorShape:
        return scalar()

    def numpy(self, inputs: list[Array]) -> Array:
        first, *rest = self.template.split(self.placeholder)
        shown = [_printed(np.asarray(value), self.summarize) for value in inputs]
        filled = first + "".join(s + part for s, part in zip(shown, rest, strict=True))
        return text.text_array(filled.encode())


def _printed(array: Array, edge: int) -> str:
    """The notation of `tf.print`: `[1 2 3 ... 8 9]`, `edge` elements at each end, text quoted."""
    if array.ndim == 0:
        item = array[()]
        return f'"{_word(item)}"' if isinstance(item, bytes) else _word(item)
    cut = edge if 0 <= 2 * edge < len(array) else len(array)
    parts = [_indented(row, edge) for row in array[:cut]]
    if cut < len(array):
        parts += ["...", *(_indented(row, edge) for row in array[len(array) - cut :])]
    gap = "\n" * (array.ndim - 1) + " "
    return f"[{gap.join(parts)}]"


def _indented(row: Any, edge: int) -> str:
    array = text.text_array(row) if isinstance(row, bytes) else np.asarray(row)
    return re.sub(r"\n(?!\n)", "\n ", _printed(array, edge))


@public("strings.format")
def string_format(
    template: str,
    inputs: TensorStructure,
    placeholder: str = "{}",
    summarize: int = _DEFAULT_ENTRIES,
    name: str | None = None,
) -> Tensor:
    """A string tensor: `template` with each `placeholder` replaced by the next of `inputs`."""
    values = list(cast("Sequence[Any]", inputs)) if isinstance(inputs, list | tuple) else [inputs]
    wanted = template.count(placeholder)
    if wanted != len(values):
        raise ValueError(
            f"{wanted} placeholder(s) in template does not match {len(values)} tensor(s) provided "
            "as input"
        )
    op = StringFormat(template=template, placeholder=placeholder, summarize=summarize)
    return op(values, name=name)


class PrintV2(Op):
    """Writes a string to a stream: stdout, stderr, a log level, or a file to append to."""

    signature = "input: string ->"
    effects = (writes(Resource.CONSOLE), writes(Resource.FILES))
    stateful = True
    host_only = True
    not_differentiable = True
    output_stream: str = "stderr"
    end: str = "\n"

    def shape(self, input: Tensor) -> list[TensorShape]:
        input.shape.assert_has_rank(0)
        return []

    def kernel(self, context: Context, input: Array) -> tuple[()]:
        _write(self.output_stream, text.text_item(input).decode(errors="replace") + self.end)
        return ()


def _write(stream: str, line: str) -> None:
    if stream in ("stdout", "stderr"):
        getattr(sys, stream).write(line)
    elif stream.startswith("log("):
        getattr(tf_logging, _LOG_LEVELS[stream[4:-1]])("%s", line.rstrip("\n"))
    else:
        with gfile.GFile(stream.removeprefix("file://"), "a") as file:
            file.write(line)


_LOG_LEVELS = {"info": "info", "warning": "warning", "error": "error"}


@public("print")
def print_values(*inputs: UserObject, **options: Any) -> Node:
    """A node that prints tensors and Python values when it runs.

    Args:
        inputs: tensors, and structures of them and of Python values.
        options: `output_stream`, a file such as `sys.stderr`; `summarize`, how many entries at each
            end of an axis; `sep` and `end`, as for `print`; `name`.

    Returns:
        A node; run it, or make others depend on it.

    Example:
        >>> shown = tf.print("x is", tf.constant([1, 2]), output_stream="file://x.txt")
        >>> sess.run(shown)
        >>> tf.gfile.GFile("x.txt").read()
        'x is [1 2]\\n'
    """
    stream = _stream_name(options.pop("output_stream", sys.stderr))
    edge = options.pop("summarize", _DEFAULT_ENTRIES)
    separator, end = options.pop("sep", " "), options.pop("end", "\n")
    name = options.pop("name", None)
    if options:
        raise ValueError(f"Unrecognized keyword arguments for tf.print: {options}")
    shown = [_template_part(value) for value in inputs]
    template = separator.join(piece for piece, _ in shown)
    tensors = [tensor for _, found in shown for tensor in found]
    op = StringFormat(template=template, placeholder=_MARK, summarize=edge)
    return PrintV2(output_stream=stream, end=end)(op(tensors), name=name or "PrintV2")


_MARK = "\x00{}"  # unlikely in the values that a user prints


def _template_part(value: Any) -> tuple[str, list[Tensor]]:
    if isinstance(value, Tensor):
        return _MARK, [value]
    if isinstance(value, list | tuple):
        parts = [_template_part(item) for item in cast("Sequence[Any]", value)]
        pieces = ", ".join(piece for piece, _ in parts)
        tensors = [tensor for _, found in parts for tensor in found]
        return (f"[{pieces}]" if isinstance(value, list) else f"({pieces})"), tensors
    if hasattr(value, "_as_graph_element"):
        return _MARK, [convert_to_tensor(value)]
    return str(value), []


def _stream_name(stream: Any) -> str:
    if stream is sys.stdout:
        return "stdout"
    if stream is sys.stderr:
        return "stderr"
    levels = {getattr(tf_logging, level): f"log({level})" for level in _LOG_LEVELS}
    if callable(stream) and stream in levels:
        return levels[stream]
    if isinstance(stream, str) and stream.startswith("file://"):
        return stream
    raise ValueError(
        f"Unsupported output stream {stream!r}: expected sys.stdout, sys.stderr, a logging level "
        "such as tf.logging.info, or 'file://path'"
    )


def failed_assertion(data: Sequence[Array], limit: int) -> errors.InvalidArgumentError:
    """The error of a failed assertion, with its data."""
    shown = " ".join(f"[{summarize(value, limit)}]" for value in data)
    return errors.invalid(f"assertion failed: {shown}")
