"""Dynamic shapes: integers of kernels that vary between lowerings are read at run time.

The first lowering of a region has all its sizes as constants. Where a later one, for other shapes,
has the same kernels but for some integers, those integers become arguments from then on: another
batch size compiles nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from thalweg.ir.fingerprint import fingerprint, integers, places_of_offsets, with_dynamic
from thalweg.ir.kernel import Kernel
from thalweg.platform.caches import Bounded

if TYPE_CHECKING:
    from thalweg.lower.lowered import Launch


@dataclass(frozen=True)
class SpecializedKernel:
    """A kernel to emit, and the integers that it takes as arguments."""

    kernel: Kernel
    words: tuple[int, ...] = ()


@dataclass(frozen=True)
class ObservedInts:
    """The integers of a kernel, and the positions of those that vary."""

    integers: tuple[int, ...]
    varying: frozenset[int] = frozenset()


class Form(NamedTuple):
    """A lowering as it was observed: the fingerprints of its kernels, and their integers."""

    family: tuple[bytes, ...]
    kernels: tuple[ObservedInts, ...]


class Varying:
    """The integers of a region's kernels in all lowerings so far, and which of them vary.

    A batch of one has other loops than a larger one: each list of fingerprints is a family.
    """

    def __init__(self) -> None:
        self._families = Bounded[tuple[bytes, ...], Sequence[ObservedInts]]("forms of a region", 64)

    def adapt(self, launches: Sequence[Launch]) -> list[SpecializedKernel]:
        """The kernels of a new lowering, with the integers that vary as arguments."""
        return adapted(launches, self.see(launches))

    def see(self, launches: Sequence[Launch]) -> Form:
        """Observe a new lowering."""
        family = tuple(fingerprint(launch.kernel) for launch in launches)
        found = _observed([launch.kernel for launch in launches], family)
        before = self._families.get(family)
        if before is not None:
            found = [_merged(*pair) for pair in zip(before, found, strict=True)]
        self._families[family] = found
        return Form(family, tuple(found))

    def restore(self, form: Form) -> None:
        """Observe a lowering as another process did, after the same ones."""
        self._families[form.family] = form.kernels


def adapted(launches: Sequence[Launch], form: Form) -> list[SpecializedKernel]:
    """The kernels of a lowering of this form, with the integers that vary as arguments."""
    return [_adapted(*pair) for pair in zip(launches, form.kernels, strict=True)]


def _observed(kernels: Sequence[Kernel], shapes: Sequence[bytes]) -> list[ObservedInts]:
    """The integers of a lowering's kernels; kernels that differ only in the constants of offsets
    (the items of a sequence, parts of a longer buffer) become one, with those constants as
    arguments."""
    of_shape: dict[bytes, list[int]] = defaultdict(list)
    for number, shape in enumerate(shapes):
        of_shape[shape].append(number)
    found = [ObservedInts(integers(kernel)) for kernel in kernels]
    for numbers in of_shape.values():
        if len({found[number].integers for number in numbers}) > 1:
            places = places_of_offsets(kernels[numbers[0]])
            groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
            for number in numbers:
                pairs = enumerate(found[number].integers)
                groups[tuple([n for place, n in pairs if place not in places])].append(number)
            for group in groups.values():
                _share(group, found)
    return found


def _share(group: Sequence[int], found: list[ObservedInts]) -> None:
    """Let the integers vary that differ in a group of kernels."""
    columns = zip(*[found[number].integers for number in group], strict=True)
    varying = frozenset(place for place, column in enumerate(columns) if len(set(column)) > 1)
    for number in group:
        found[number] = ObservedInts(found[number].integers, varying)


def _merged(old: ObservedInts, new: ObservedInts) -> ObservedInts:
    pairs = enumerate(zip(old.integers, new.integers, strict=True))
    differing = {place for place, (before, now) in pairs if before != now}
    return ObservedInts(new.integers, old.varying | new.varying | differing)


def _adapted(launch: Launch, seen: ObservedInts) -> SpecializedKernel:
    if not seen.varying:
        return SpecializedKernel(launch.kernel)
    first = len(launch.kernel.arguments) + 2  # after the fault word, the arguments and the scratch
    kernel = with_dynamic(launch.kernel, seen.varying, first)
    return SpecializedKernel(kernel, tuple(seen.integers[place] for place in sorted(seen.varying)))
