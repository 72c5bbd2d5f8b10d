"""How eager code records an op, by what the op is."""

from __future__ import annotations

from enum import IntEnum

from thalweg.graph.op import Op
from thalweg.ops.core.basic import Const, Placeholder
from thalweg.ops.core.python_call import PyFunc
from thalweg.ops.random.random import Random


class OutputKind(IntEnum):
    """What is particular about recording an op."""

    PLAIN = 0
    RANDOM = 1  # takes the next numbers of a stream
    CONSTANT = 2  # is a value, not work
    PYTHON = 3  # calls a function of the user's, now
    NAMED = 4  # makes something that has a name
    FORBIDDEN = 5  # means nothing without a step


def _kind(op: type[Op]) -> OutputKind:
    if issubclass(op, Const):
        return OutputKind.CONSTANT
    if issubclass(op, Random):
        return OutputKind.RANDOM
    if issubclass(op, PyFunc):
        return OutputKind.PYTHON
    if issubclass(op, Placeholder):
        return OutputKind.FORBIDDEN
    is_source = not op.parsed.inputs and op.stateful
    return OutputKind.NAMED if is_source and "shared_name" in op.fields else OutputKind.PLAIN


class _Kinds(dict[type[Op], OutputKind]):
    def __missing__(self, op: type[Op]) -> OutputKind:
        found = self[op] = _kind(op)
        return found


#: The kind of each op that was asked for.
kinds = _Kinds()
