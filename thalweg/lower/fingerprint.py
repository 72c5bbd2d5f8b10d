"""What a region is, beyond the process it was made in.

Comes in: a region. Goes out: a digest that is equal for regions of the same ops, attributes,
constants, dtypes and wiring, whatever their nodes are called and wherever they were made; or None
for a region that holds something which only this process knows.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from thalweg.graph.node import Node, Tensor
from thalweg.lower.canonical_text import Unnamed, op_text
from thalweg.lower.specialise import Region


def fingerprint(region: Region) -> bytes | None:
    """A digest of all that lowering a region depends on, besides the shapes that come in."""
    try:
        return _Encoding(region).digest()
    except Unnamed:
        return None


class _Encoding:
    """A region as numbers and text: tensors by number, in the order in which they appear,
    and ops by the number of their text."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._numbers: dict[Tensor, int] = {}
        self._texts: dict[str, int] = {}

    def digest(self) -> bytes:
        region = self._region
        border = [
            [self._enter(tensor) for tensor in region.inputs],
            [(self._enter(tensor), tensor in region.carried) for tensor in region.references],
        ]
        for tensor in region.roots:  # references that come in beside their variable
            self._number(tensor)
        flow = self._flow(region.nodes)
        roots = [(self._number(t), self._number(root)) for t, root in region.roots.items()]
        outputs = [(self._number(t), t in region.early) for t in region.outputs]
        text = f"{border}{roots}{outputs}\n" + "\n".join(self._texts)
        digest = blake2b(text.encode("utf-8", "surrogateescape"), digest_size=20)
        digest.update(b"\0" + flow.tobytes())  # no text has such a character
        return digest.digest()

    def _enter(self, tensor: Tensor) -> str:
        return f"{self._number(tensor)} {tensor.dtype.name}"

    def _number(self, tensor: Tensor) -> int:
        return self._numbers.setdefault(tensor, len(self._numbers))

    def _flow(self, nodes: Sequence[Node]) -> array[int]:
        """Of each node its op, whether it waits, how many tensors it takes, which, and which it
        gives; a count before each list keeps them apart."""
        numbers, texts, words = self._numbers, self._texts, list[int]()
        for node in nodes:
            op, taken, given = node.op, node.inputs, node.outputs
            words += texts.setdefault(op_text(op), len(texts)), bool(node.controls), len(taken)
            try:
                words += [numbers[tensor] for tensor in taken]
            except KeyError:
                raise Unnamed from None
            if op.parsed.has_lists:
                words += node.input_counts()
            words.append(len(given))
            words += [numbers.setdefault(tensor, len(numbers)) for tensor in given]
        return array("q", words)
