"""Loop nests as text before and after a pass, which tests of passes compare."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

import pytest

from tests.lower.programs import lowered
from thalweg.ir.text.printer import kernel_text
from thalweg.lower import lowering
from thalweg.lower.lowered import Launch
from thalweg.lower.memory.buffers import Buffer, BufferKind
from thalweg.lower.nests.bufferize import bufferize
from thalweg.lower.nests.loop_nest import LoopNest

_LETTERS = {BufferKind.OUTPUT: "out", BufferKind.CONSTANT: "c"}


def changed_by(name: str, *fetches: Any) -> str:
    """The changes of a pass when a small graph is lowered: nests it removes (-) and adds (+).

    Of other nests the first line is shown. Buffers are named after the tensors and variables that
    they hold, temporaries `m0`, `m1`, …; `b_from_64` begins at element 64 of b.
    """
    names = _Names()
    before, after = (list(names.texts(nests)) for nests in _around(name, fetches))
    lines: list[str] = []
    for change, a, b, c, d in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if change == "equal":
            lines += [f"  {text.splitlines()[0]} …" for text in before[a:b]]
        else:
            lines += [f"- {line}" for text in before[a:b] for line in text.splitlines()]
            lines += [f"+ {line}" for text in after[c:d] for line in text.splitlines()]
    return "\n".join(lines) + "\n"


def _around(name: str, fetches: Sequence[Any]) -> tuple[list[LoopNest], list[LoopNest]]:
    """The input and the output of the first call of the pass."""
    found: list[tuple[list[LoopNest], list[LoopNest]]] = []
    wanted = getattr(lowering, name)

    def noted(nests: Sequence[LoopNest], *rest: Any) -> list[LoopNest]:
        result = wanted(nests, *rest)
        found.append((list(nests), list(result)))
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lowering, name, noted)
        lowered(*fetches)
    return found[0]


class _Names:
    """The names of buffers, equal before and after."""

    def __init__(self) -> None:
        self._known: dict[Buffer, str] = {}
        self._counts: Counter[str] = Counter()

    def texts(self, nests: Sequence[LoopNest]) -> Iterator[str]:
        """Each nest as the kernel that it becomes."""
        for launch in bufferize(nests, {})[0]:
            yield kernel_text(launch.kernel, self._of(launch))

    def _of(self, launch: Launch) -> list[str]:
        pairs = zip(launch.buffers, launch.starts, strict=True)
        return [self._name(buffer) + (f"_from_{start}" if start else "") for buffer, start in pairs]

    def _name(self, buffer: Buffer) -> str:
        if buffer not in self._known:
            self._known[buffer] = self._made(buffer)
        return self._known[buffer]

    def _made(self, buffer: Buffer) -> str:
        if buffer.kind in (BufferKind.INPUT, BufferKind.VARIABLE):
            return re.sub(r"\W", "_", buffer.source.name.removesuffix(":0"))
        letter = _LETTERS.get(buffer.kind, "m")
        self._counts[letter] += 1
        return f"{letter}{self._counts[letter] - 1}"
