"""What a region is, beyond the process it was made in.

Comes in: a region. Goes out: a digest that is equal for regions of the same ops, attributes,
constants, dtypes and wiring, whatever their nodes are called and wherever they were made; or None
for a region that holds something which only this process knows.
"""

from __future__ import annotations

from hashlib import blake2b

from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.lower.specialise import Region
from thalweg.lower.wording import Unnamed, op_text


def identity(region: Region) -> bytes | None:
    """A digest of all that lowering a region depends on, besides the shapes that come in."""
    try:
        return _Account(region).digest()
    except Unnamed:
        return None


class _Account:
    """A region told as text: tensors by number, in the order in which they appear."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._numbers: dict[Tensor, int] = {}
        self._ops: dict[int, str] = {}  # of ops that several nodes share

    def digest(self) -> bytes:
        region = self._region
        border = [
            [self._enter(tensor) for tensor in region.inputs],
            [(self._enter(tensor), tensor in region.carried) for tensor in region.references],
        ]
        for tensor in region.roots:  # references that come in beside their variable
            self._number(tensor)
        told = [self._node(node) for node in region.nodes]
        roots = [(self._number(t), self._number(root)) for t, root in region.roots.items()]
        outputs = [self._number(tensor) for tensor in region.outputs]
        text = f"{border}{roots}{outputs}\n" + "\n".join(told)
        return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=20).digest()

    def _enter(self, tensor: Tensor) -> str:
        return f"{self._number(tensor)} {tensor.dtype.name}"

    def _number(self, tensor: Tensor) -> int:
        return self._numbers.setdefault(tensor, len(self._numbers))

    def _node(self, node: Node) -> str:
        numbers = self._numbers
        try:
            taken = [numbers[tensor] for tensor in node.inputs]
        except KeyError:
            raise Unnamed from None
        for tensor in node.outputs:
            numbers.setdefault(tensor, len(numbers))
        given = [numbers[tensor] for tensor in node.outputs]
        op = node.op
        counts = node.input_counts() if op.parsed.has_lists else ""
        waits = "after" if node.control_inputs else ""
        return f"{self._op(op)}{taken}{counts}{waits}{given}"

    def _op(self, op: Op) -> str:
        known = self._ops.get(id(op))
        if known is None:
            self._ops[id(op)] = known = op_text(op)
        return known
