"""Sizes that vary from call to call.

The first lowering of a region has all its sizes in the code. Where a later one, for other shapes,
has the same kernels but for some integers, those integers are read at run time from then on, and
the code serves any value: a last, smaller batch does not compile anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from thalweg.ir.fingerprint import fingerprint
from thalweg.ir.kernel import Kernel
from thalweg.ir.parametric import integers, places_of_offsets, with_dynamic
from thalweg.lower.nests.bufferize import Launch
from thalweg.platform.caches import Bounded


@dataclass(frozen=True)
class SpecializedKernel:
    """A kernel to emit, and the integers it reads when it runs."""

    kernel: Kernel
    words: tuple[int, ...] = ()


@dataclass(frozen=True)
class ObservedInts:
    """The integers of a kernel, and the places of those that vary."""

    integers: tuple[int, ...]
    varying: frozenset[int] = frozenset()


class Form(NamedTuple):
    """A lowering as it was seen: what its kernels are but for integers, and these."""

    family: tuple[bytes, ...]
    kernels: tuple[ObservedInts, ...]


class Varying:
    """What the kernels of a region looked like so far, and which of their integers vary.

    A batch of one has other loops than a larger one: each such form is a family of its own.
    """

    def __init__(self) -> None:
        self._families = Bounded[tuple[bytes, ...], Sequence[ObservedInts]]("forms of a region", 64)

    def adapt(self, launches: Sequence[Launch]) -> list[SpecializedKernel]:
        """The kernels of a new lowering, with what varies to be read at run time."""
        return adapted(launches, self.see(launches))

    def see(self, launches: Sequence[Launch]) -> Form:
        """Take note of a new lowering."""
        family = tuple(fingerprint(launch.kernel) for launch in launches)
        found = _alike([launch.kernel for launch in launches], family)
        before = self._families.get(family)
        if before is not None:
            found = [_together(*pair) for pair in zip(before, found, strict=True)]
        self._families[family] = found
        return Form(family, tuple(found))

    def restore(self, form: Form) -> None:
        """Take note of a lowering that was seen in another process, after the same ones."""
        self._families[form.family] = form.kernels


def adapted(launches: Sequence[Launch], form: Form) -> list[SpecializedKernel]:
    """The kernels of a lowering that was seen like this, with what varies read at run time."""
    return [_adapted(*pair) for pair in zip(launches, form.kernels, strict=True)]


def _alike(kernels: Sequence[Kernel], shapes: Sequence[bytes]) -> list[ObservedInts]:
    """The kernels of a lowering; those that differ only in where they load and store are one.

    A row of a sequence, a part of a longer buffer: its place is added when the kernel runs.
    """
    of_shape: dict[bytes, list[int]] = {}
    for number, shape in enumerate(shapes):
        of_shape.setdefault(shape, []).append(number)
    found = [ObservedInts(integers(kernel)) for kernel in kernels]
    for numbers in of_shape.values():
        if len({found[number].integers for number in numbers}) > 1:
            places = places_of_offsets(kernels[numbers[0]])
            for group in _groups([found[number].integers for number in numbers], places):
                _share([numbers[position] for position in group], found)
    return found


def _groups(all_integers: Sequence[tuple[int, ...]], free: frozenset[int]) -> list[list[int]]:
    """The positions of those that are equal but for the integers at the free places."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for position, numbers in enumerate(all_integers):
        fixed = tuple([n for place, n in enumerate(numbers) if place not in free])
        groups.setdefault(fixed, []).append(position)
    return list(groups.values())


def _share(group: Sequence[int], found: list[ObservedInts]) -> None:
    columns = zip(*[found[number].integers for number in group], strict=True)
    varying = frozenset(place for place, column in enumerate(columns) if len(set(column)) > 1)
    for number in group:
        found[number] = ObservedInts(found[number].integers, varying)


def _together(old: ObservedInts, new: ObservedInts) -> ObservedInts:
    pairs = enumerate(zip(old.integers, new.integers, strict=True))
    differing = {place for place, (before, now) in pairs if before != now}
    return ObservedInts(new.integers, old.varying | new.varying | differing)


def _adapted(launch: Launch, seen: ObservedInts) -> SpecializedKernel:
    if not seen.varying:
        return SpecializedKernel(launch.kernel)
    first = len(launch.kernel.arguments) + 2  # after the fault word, the arguments and the scratch
    kernel = with_dynamic(launch.kernel, seen.varying, first)
    return SpecializedKernel(kernel, tuple(seen.integers[place] for place in sorted(seen.varying)))
