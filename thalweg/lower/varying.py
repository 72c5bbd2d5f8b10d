"""Sizes that vary from call to call.

The first lowering of a region has all its sizes in the code. Where a later one, for other shapes,
has the same kernels but for some integers, those integers are read at run time from then on, and
the code serves any value: a last, smaller batch does not compile anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thalweg.loops.kernel import Kernel
from thalweg.loops.parametric import integers, shape_of, with_dynamic
from thalweg.lower.finish import Launch


@dataclass(frozen=True)
class Adapted:
    """A kernel to emit, and the integers it reads when it runs."""

    kernel: Kernel
    words: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Seen:
    integers: tuple[int, ...]
    varying: frozenset[int] = frozenset()


class Varying:
    """What the kernels of a region looked like so far, and which of their integers vary.

    A batch of one has other loops than a larger one: each such form is a family of its own.
    """

    def __init__(self) -> None:
        self._families: dict[tuple[bytes, ...], list[_Seen]] = {}

    def adapt(self, launches: Sequence[Launch]) -> list[Adapted]:
        """The kernels of a new lowering, with what varies to be read at run time."""
        family = tuple(shape_of(launch.kernel) for launch in launches)
        found = [_Seen(integers(launch.kernel)) for launch in launches]
        before = self._families.get(family)
        if before is not None:
            found = [_together(*pair) for pair in zip(before, found, strict=True)]
        self._families[family] = found
        return [_adapted(*pair) for pair in zip(launches, found, strict=True)]


def _together(old: _Seen, new: _Seen) -> _Seen:
    pairs = enumerate(zip(old.integers, new.integers, strict=True))
    differing = {place for place, (before, now) in pairs if before != now}
    return _Seen(new.integers, old.varying | differing)


def _adapted(launch: Launch, seen: _Seen) -> Adapted:
    if not seen.varying:
        return Adapted(launch.kernel)
    first = len(launch.kernel.arguments) + 2  # after the fault word, the arguments and the scratch
    kernel = with_dynamic(launch.kernel, seen.varying, first)
    return Adapted(kernel, tuple(seen.integers[place] for place in sorted(seen.varying)))
