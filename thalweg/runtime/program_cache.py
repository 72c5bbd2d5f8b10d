"""Programs of regions, kept on disk beside their kernels: no later process has to lower them again.

Comes in: a region, the shapes of its inputs, the image that lowering them gave. Goes out, in a
process that has the same region: that image, its kernels, and what varied so far. An entry's name
stands for all that lowering depends on: the region's content, the shapes, those that came before,
the threads, the processor, the schedules that were measured, and the code of this package. An entry
is plain data, JSON and arrays, under a checksum; one that is damaged counts as not there.
"""

from __future__ import annotations

import json
import platform
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import blake2b
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from thalweg.codegen.cache import Loaded, shared_disk
from thalweg.codegen.contraction.tune import winners
from thalweg.codegen.sources import own_digest
from thalweg.codegen.winograd.plan import ENABLED
from thalweg.device.cpu.program_template import (
    Output,
    PlacedCall,
    ProgramTemplate,
    Reference,
    Stream,
    Words,
)
from thalweg.device.device import Device
from thalweg.graph.dtypes import as_dtype
from thalweg.graph.node import Node
from thalweg.lower.dynamic_shapes import Form, ObservedInts
from thalweg.lower.fingerprint import fingerprint
from thalweg.lower.specialise import NotCompiled, Region
from thalweg.ops.core.basic import Const

Array = NDArray[Any]
Shapes = Sequence[tuple[int, ...]]

_MOST = 4  # sets of shapes that a region's programs are kept for
_LENGTH = struct.Struct("<Q")
_ALIGNMENT = 16
#: Where the code lies that programs are made by.
FOLDERS = ("autodiff", "codegen", "control", "device", "graph", "ir", "lower", "ops", "runtime")


@dataclass(frozen=True, eq=False)
class Recalled:
    """A program that an earlier process made."""

    image: ProgramTemplate
    loaded: Sequence[Loaded]
    form: Callable[[], Form]  # what its lowering was seen as


class Remembered:
    """The programs of one region. They depend on the shapes that came before: see `Varying`."""

    def __init__(self, region: Region, device: Device) -> None:
        self._region, self._device = region, device
        self._before: list[Shapes] = []
        self._name: str | None = None  # of the program that was looked for last

    def find(self, shapes: Shapes) -> Recalled | None:
        """The program for these shapes; raises NotCompiled where it is known that none can be."""
        disk, self._name = shared_disk(), self._name_for(shapes)
        content = disk.read(self._name) if disk and self._name else None
        if content is None:
            return None
        try:
            found = self._recalled(_Reading(content, self._name or ""))
        except (LookupError, TypeError, ValueError, struct.error):
            return None  # not of our making
        if found is not None:
            self.saw(shapes)
        return found

    def saw(self, shapes: Shapes) -> None:
        """The region was lowered for these shapes: later programs may differ because of it."""
        if len(self._before) < _MOST:  # after that many, no program is kept
            self._before.append(shapes)

    def keep(self, image: ProgramTemplate, form: Form) -> None:
        """Keep the program that was not found."""
        disk = shared_disk()
        if disk and self._name:
            entry = _Writing(self._name)
            _write_image(entry, image, self._region.nodes)
            _write_form(entry, form)
            disk.write(self._name, entry.content())

    def keep_failure(self, failure: NotCompiled) -> None:
        """Keep that there is no program, because of a node."""
        disk, nodes = shared_disk(), self._region.nodes
        if disk and self._name and failure.node in nodes:
            entry = _Writing(self._name)
            entry.data["failed"] = nodes.index(failure.node), failure.reason
            disk.write(self._name, entry.content())

    def _name_for(self, shapes: Shapes) -> str | None:
        """What the program for these shapes is called; None where it is not to be kept."""
        if shared_disk() is None or len(self._before) >= _MOST or self._identity is None:
            return None
        told = f"{surroundings()} {winners().state} {self._device.key} {[*self._before, shapes]}"
        return blake2b(self._identity + told.encode(), digest_size=32).hexdigest()

    @cached_property
    def _identity(self) -> bytes | None:
        return fingerprint(self._region)

    def _recalled(self, entry: _Reading) -> Recalled | None:
        if "failed" in entry.data:
            failed: tuple[int, str] = entry.data["failed"]
            raise NotCompiled(self._region.nodes[failed[0]], failed[1])
        image = _image(entry, self._region.nodes)
        form = bytes(entry.piece(*entry.data["form"]))  # decoded where it is needed
        loaded = self._device.find_kernels(image.kernels)
        return None if loaded is None else Recalled(image, loaded, lambda: _form(form))


@cache
def surroundings() -> str:
    """What the outcome depends on besides region, shapes and device: all the code."""
    versions = f"{platform.python_version()} {np.__version__} {ml_dtypes.__version__}"
    return f"{versions} {own_digest(FOLDERS)} {ENABLED}"


# Entries: the length of the JSON, the JSON, and the arrays that it points to.


class _Writing:
    """An entry while it is put together."""

    def __init__(self, name: str) -> None:
        self.data: dict[str, Any] = {"name": name}
        self._pieces: list[bytes] = []
        self._size = 0

    def array(self, value: Any) -> Any:
        """Where an array lies in the entry, and what it is."""
        if value is None:
            return None
        array = np.ascontiguousarray(value)
        place = self.piece(array.tobytes())
        return [*place, as_dtype(array.dtype).name, list(np.shape(value))]

    def piece(self, content: bytes) -> tuple[int, int]:
        """Where some bytes lie in the entry: from where to where."""
        start = self._size
        padding = -len(content) % _ALIGNMENT
        self._pieces += [content, bytes(padding)]
        self._size += len(content) + padding
        return start, start + len(content)

    def content(self) -> bytes:
        head = json.dumps(self.data, separators=(",", ":")).encode()
        return b"".join([_LENGTH.pack(len(head)), head, *self._pieces])


class _Reading:
    """An entry that was found under a name."""

    def __init__(self, content: bytes, name: str) -> None:
        (length,) = _LENGTH.unpack_from(content)
        start = _LENGTH.size + length
        self.data: dict[str, Any] = json.loads(content[_LENGTH.size : start])
        self._pieces = memoryview(content)[start:]
        if self.data["name"] != name:
            raise ValueError("The entry is another one's.")

    def array(self, told: Any) -> Any:
        """An array of its own, or None."""
        if told is None:
            return None
        start, end, dtype, shape = told
        kind = np.dtype(as_dtype(dtype).as_numpy_dtype)
        return np.frombuffer(self.piece(start, end), kind).reshape(shape).copy()

    def piece(self, start: int, end: int) -> memoryview:
        """The bytes from one place to another."""
        return self._pieces[start:end]


def _write_image(entry: _Writing, image: ProgramTemplate, nodes: Sequence[Node]) -> None:
    entry.data |= {
        "kernels": image.kernels,
        "calls": entry.array(np.array(image.calls, np.int64).reshape(-1, 6)),
        "words": entry.array(image.words),
        "bases": entry.array(image.bases),
        "constants": _write_constants(entry, image.constants, nodes),
        "streams": [(s.node, [entry.array(value) for value in s.values]) for s in image.streams],
        "inputs": image.inputs,
        "references": image.references,
        "outputs": [output._replace(dtype=_name_of(output.dtype)) for output in image.outputs],
        "arena": image.arena,
        "threads": image.threads,
        "holds_gil": image.holds_gil,
    }


def _image(entry: _Reading, nodes: Sequence[Node]) -> ProgramTemplate:
    data = entry.data
    return ProgramTemplate(
        tuple(data["kernels"]),
        [
            PlacedCall(kernel, word, barrier != 0, thread, no_pause != 0, work)
            for kernel, word, barrier, thread, no_pause, work in _rows(entry, "calls")
        ],
        entry.array(data["words"]),
        entry.array(data["bases"]),
        [_constant(entry, told, nodes) for told in data["constants"]],
        [Stream(node, tuple(map(entry.array, values))) for node, values in data["streams"]],
        [(place, _words(words)) for place, words in data["inputs"]],
        [_reference(*told) for told in data["references"]],
        [_output(*told) for told in data["outputs"]],
        data["arena"],
        data["threads"],
        data["holds_gil"],
    )


def _rows(entry: _Reading, name: str) -> list[list[int]]:
    return entry.array(entry.data[name]).tolist()


def _write_constants(
    entry: _Writing, constants: Sequence[Array], nodes: Sequence[Node]
) -> list[Any]:
    """Constants of the graph by their node, others, which were computed, as they are."""
    known = {
        id(node.op.value): place for place, node in enumerate(nodes) if isinstance(node.op, Const)
    }
    return [known[id(array)] if id(array) in known else entry.array(array) for array in constants]


def _constant(entry: _Reading, told: Any, nodes: Sequence[Node]) -> Array:
    if isinstance(told, int):
        return np.require(nodes[told].op.numpy(), requirements=["C", "A"])
    return entry.array(told)


def _words(told: Sequence[Sequence[int]]) -> Words:
    return tuple([(word, shift) for word, shift in told])


def _reference(words: Any, written: bool, is_set_first: bool, shape: Any) -> Reference:
    return Reference(_words(words), written, is_set_first, tuple(shape))


def _output(words: Any, shape: Any, dtype: str | None, reference: int) -> Output:
    kind = None if dtype is None else np.dtype(as_dtype(dtype).as_numpy_dtype)
    return Output(_words(words), tuple(shape), kind, reference)


def _name_of(dtype: Any) -> str | None:
    return None if dtype is None else as_dtype(dtype).name


def _write_form(entry: _Writing, form: Form) -> None:
    """What a lowering was seen as, in a piece that is read only where it is needed."""
    pairs = list(zip(form.family, form.kernels, strict=True))
    numbers = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
    told = [(f.hex(), seen.integers, sorted(seen.varying)) for f, seen in numbers]
    content = json.dumps([told, [numbers[pair] for pair in pairs]], separators=(",", ":"))
    entry.data["form"] = entry.piece(content.encode())


def _form(content: bytes) -> Form:
    decoded: tuple[Any, list[int]] = json.loads(content)
    told, numbers = decoded
    families = [bytes.fromhex(family) for family, _, _ in told]
    seen = [ObservedInts(tuple(integers), frozenset(varying)) for _, integers, varying in told]
    return Form(tuple([families[n] for n in numbers]), tuple([seen[n] for n in numbers]))
