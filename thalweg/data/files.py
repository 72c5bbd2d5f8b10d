"""Elements from files: lines of text, TFRecords, records of a fixed length.

The state of such a flow is the index of the file and the position in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from thalweg.data.flow import Element, Flow, Rows, Stage
from thalweg.errors import invalid
from thalweg.ops.text import text
from thalweg.platform.files.records import PackedFile, PlainFile, RecordReader, opened

_BLOCK: Final = 1 << 18


class FileFlow(Flow):
    """The records of several files, one file after the other."""

    gives_rows = True

    def open(self, filenames: Any, *rest: Any) -> None:
        self._names = [name.decode() for name in text.elements(filenames)]
        self.compression = text.text_item(self.compression_of(*rest)).decode()
        if self.compression not in ("", "GZIP", "ZLIB"):
            raise self.failed(invalid(f"Unsupported compression_type: {self.compression!r}"))
        self._file = 0  # the index of the file
        self._offset: int = 0  # of the current block in the file
        self._position = 0  # records of the block that were produced
        self._blocks: Iterator[tuple[int, list[bytes]]] | None = None
        self._block: list[bytes] = []

    def compression_of(self, compression_type: Any, buffer_size: Any) -> Any:
        """The value of the op's input `compression_type`."""
        return compression_type

    def blocks(self, name: str, offset: int) -> Iterator[tuple[int, list[bytes]]]:
        """Blocks of records from an offset on, each with its offset."""
        raise TypeError(f"{type(self).__name__} must define blocks")

    def next(self) -> Element | None:
        if self._position >= len(self._block) and not self._advance():
            return None
        self._position += 1
        return (self._block[self._position - 1],)

    def rows(self, most: int) -> Rows | None:
        if self._position >= len(self._block) and not self._advance():
            return None
        start = self._position
        self._position = min(start + most, len(self._block))
        return (text.text_of(self._block[start : self._position]),)

    def _advance(self) -> bool:
        """Read the next block with records; returns False at the end of all files."""
        while self._file < len(self._names):
            try:
                if self._blocks is None:
                    self._blocks = self.blocks(self._names[self._file], self._offset)
                for offset, block in self._blocks:
                    self._offset, self._block, self._position = offset, block, 0
                    if block:
                        return True
            except Exception as error:
                self._next_file()
                raise self.failed(error) from error
            self._next_file()
        return False

    def _next_file(self) -> None:
        self._file += 1
        self._offset = self._position = 0
        self._blocks, self._block = None, []

    def save(self) -> Any:
        return {"file": self._file, "offset": self._offset, "given": self._position}

    def load(self, state: Any) -> None:
        self._file, self._offset = int(state["file"]), int(state["offset"])
        self._blocks, self._block, self._position = None, [], 0
        given = int(state["given"])
        if given and self._advance():
            self._position = given

    def close(self) -> None:
        self._blocks = None


class TFRecordFlow(FileFlow):
    """TFRecords."""

    def blocks(self, name: str, offset: int) -> Iterator[tuple[int, list[bytes]]]:
        for block in RecordReader(name, self.compression, offset).blocks():
            yield block.offsets[0], block.records


class TFRecordDataset(Stage):
    """A dataset of TFRecords."""

    signature = "filenames: string, compression_type: string, buffer_size: int64 -> handle: variant"
    flow = TFRecordFlow


class TextLineFlow(FileFlow):
    """Lines of text, without line endings."""

    def blocks(self, name: str, offset: int) -> Iterator[tuple[int, list[bytes]]]:
        source = opened(name, self.compression, offset)
        rest = b""
        while data := source.read(_BLOCK):
            *lines, after = (rest + data).split(b"\n")
            size = len(rest) + len(data) - len(after)
            yield offset, [_line(line) for line in lines]
            offset += size
            rest = after
        if rest:
            yield offset, [_line(rest)]


def _line(line: bytes) -> bytes:
    return line[:-1] if line.endswith(b"\r") else line


class TextLineDataset(Stage):
    """A dataset of lines of text."""

    signature = "filenames: string, compression_type: string, buffer_size: int64 -> handle: variant"
    flow = TextLineFlow


class FixedLengthFlow(FileFlow):
    """Records of a fixed length, between a header and a footer."""

    def open(self, filenames: Any, *rest: Any) -> None:
        self._header, self._size, self._footer = (int(number) for number in rest[:3])
        if self._size < 1 or min(self._header, self._footer) < 0:
            raise self.failed(
                invalid("record_bytes must be > 0, header_bytes and footer_bytes must be >= 0.")
            )
        super().open(filenames, *rest)

    def compression_of(self, *rest: Any) -> Any:
        return rest[-1]

    def blocks(self, name: str, offset: int) -> Iterator[tuple[int, list[bytes]]]:
        offset = max(offset, self._header)
        source = opened(name, self.compression, offset)
        size, rest = self._size, b""
        for data in _reads(source, max(_BLOCK, size)):
            whole = rest + data
            count = (len(whole) - self._footer) // size
            if count > 0:
                yield offset, [whole[i * size : (i + 1) * size] for i in range(count)]
                offset += count * size
                whole = whole[count * size :]
            rest = whole
        if len(rest) != self._footer:
            raise invalid(
                f"{name}: excluding the header ({self._header} bytes) and the footer "
                f"({self._footer} bytes), the file does not hold whole records of {size} bytes: "
                f"{len(rest)} bytes are left at {offset}"
            )


def _reads(source: PlainFile | PackedFile, size: int) -> Iterator[bytes]:
    while data := source.read(size):
        yield data


class FixedLengthRecordDatasetV2(Stage):
    """A dataset of records of a fixed length."""

    signature = (
        "filenames: string, header_bytes: int64, record_bytes: int64, footer_bytes: int64, "
        "buffer_size: int64, compression_type: string -> handle: variant"
    )
    flow = FixedLengthFlow
