"""Dynamic shapes: integers of kernels that vary between lowerings are read at run time.

The first lowering of a region has all its sizes as constants. Where a later one, for other shapes,
has the same kernels but for some integers, those integers become arguments from then on: another
batch size compiles nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from thalweg.ir.fingerprint import Summary, summary, with_dynamic
from thalweg.ir.kernel import Kernel
from thalweg.platform.caches import Bounded

if TYPE_CHECKING:
    from thalweg.lower.lowered import Launch


@dataclass(frozen=True)
class SpecializedKernel:
    """A kernel to emit, and the integers that it takes as arguments."""

    kernel: Kernel
    words: tuple[int, ...] = ()

    @property
    def word_count(self) -> int:
        """The number of its argument words: the fault word, arguments, scratch and integers."""
        return len(self.kernel.arguments) + 2 + len(self.words)


@dataclass(frozen=True)
class ObservedInts:
    """The integers of a kernel, and the positions of those that vary."""

    integers: tuple[int, ...]
    varying: frozenset[int] = frozenset()


class Form(NamedTuple):
    """An observed lowering: the fingerprints of its kernels, and their integers."""

    family: tuple[bytes, ...]
    kernels: tuple[ObservedInts, ...]


class Varying:
    """The integers of a region's kernels in all lowerings so far, and which of them vary.

    Lowerings with equal lists of fingerprints are one family. A batch of one has other loops than
    a larger batch, and is a family of its own.
    """

    def __init__(self) -> None:
        self._families = Bounded[tuple[bytes, ...], Sequence[ObservedInts]]("forms of a region", 64)

    def see(self, launches: Sequence[Launch]) -> Form:
        """Observe a new lowering."""
        summaries = [summary(launch.kernel) for launch in launches]
        family = tuple(one.fingerprint for one in summaries)
        observed = _observe(summaries)
        before = self._families.get(family, observed)
        observed = [_merged(*pair) for pair in zip(before, observed, strict=True)]
        self._families[family] = observed
        return Form(family, tuple(observed))

    def restore(self, form: Form) -> None:
        """Take over what another process observed."""
        self._families[form.family] = form.kernels


def adapted(launches: Sequence[Launch], form: Form) -> list[SpecializedKernel]:
    """The kernels of a lowering of this form, with the integers that vary as arguments."""
    return [_adapted(*pair) for pair in zip(launches, form.kernels, strict=True)]


def _observe(summaries: Sequence[Summary]) -> list[ObservedInts]:
    """The integers of a lowering's kernels. Kernels that differ only in the constants of offsets
    (items of a sequence, slices of one buffer) become one kernel with those constants as
    arguments."""
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for number, (fingerprint, integers, starts) in enumerate(summaries):
        others = [n for position, n in enumerate(integers) if position not in starts]
        groups[fingerprint, *others].append(number)
    observed: dict[int, ObservedInts] = {}
    for group in groups.values():
        rows = [summaries[number].integers for number in group]
        columns = enumerate(zip(*rows, strict=True))
        varying = frozenset(position for position, column in columns if len(set(column)) > 1)
        observed |= {n: ObservedInts(row, varying) for n, row in zip(group, rows, strict=True)}
    return [observed[number] for number in range(len(summaries))]


def _merged(old: ObservedInts, new: ObservedInts) -> ObservedInts:
    pairs = enumerate(zip(old.integers, new.integers, strict=True))
    differing = {position for position, (before, after) in pairs if before != after}
    return ObservedInts(new.integers, old.varying | new.varying | differing)


def _adapted(launch: Launch, observed: ObservedInts) -> SpecializedKernel:
    plain = SpecializedKernel(launch.kernel)
    if not observed.varying:
        return plain
    kernel = with_dynamic(launch.kernel, observed.varying, plain.word_count)
    return SpecializedKernel(kernel, tuple(observed.integers[n] for n in sorted(observed.varying)))
