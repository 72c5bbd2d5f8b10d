"""Groups of disagreements, and what is printed of them.

A group is (function, kind, dtype); its smallest case stands for it. The known ones are counted by
the row of the table that explains them, and rows that explained nothing are named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from tools.fuzz_tf.case import Case, program
from tools.fuzz_tf.known import Known, explanation


@dataclass
class Group:
    """Disagreements of one function, kind and dtype."""

    function: str
    kind: str
    dtype: str
    case: Case
    detail: str
    count: int = 0


@dataclass
class Report:
    """What a run has found so far."""

    table: tuple[Known, ...]
    #: told of each group when it is found: runs take minutes
    notify: Callable[[str], None] = lambda line: None
    cases: int = 0
    agreed: int = 0
    unsupported: int = 0
    both_raised: int = 0
    functions: Counter[str] = field(default_factory=Counter[str])
    groups: dict[tuple[str, str, str], Group] = field(
        default_factory=dict[tuple[str, str, str], Group]
    )
    known: Counter[Known] = field(default_factory=Counter["Known"])

    def add(self, case: Case, found: Iterable[tuple[str, str]]) -> None:
        """Count a case and file what it disagrees about."""
        self.cases += 1
        self.functions[case.function] += 1
        found = list(found)
        self.agreed += not found
        for kind, detail in found:
            reason = explanation(self.table, case, kind, detail)
            if reason:
                self.known[reason] += 1
            else:
                self._file(case, kind, detail)

    def _file(self, case: Case, kind: str, detail: str) -> None:
        key = (case.function, kind, case.dtype)
        if key not in self.groups:
            self.notify(
                f"case {case.number}: {case.function}: {kind}, {case.dtype}: {detail[:150]}"
            )
        group = self.groups.setdefault(key, Group(*key, case, detail))
        group.count += 1
        if case.size < group.case.size:
            group.case, group.detail = case, detail

    def stale(self) -> list[Known]:
        """Rows of the table for functions that were called, which explained nothing."""
        return [row for row in self.table if not self.known[row] and row.concerns(self.functions)]

    def lines(self, seed: int, programs: bool = True) -> Iterator[str]:
        """The report as text."""
        for group in sorted(self.groups.values(), key=lambda g: (g.function, g.kind, g.dtype)):
            case = group.case
            how = f"{case.mode}, {'compiled' if case.compiled else 'reference kernels'}"
            yield f"== {group.function}: {group.kind}, {group.dtype} ({group.count} times)"
            yield f"   {group.detail}"
            yield f"   seed {seed}, case {case.number}: {how}"
            if programs:
                yield from (
                    f"   | {line[:2000]}"
                    for line in program(case, "gradient" in group.kind).splitlines()
                )
        yield from self._summary()

    def _summary(self) -> Iterator[str]:
        for row, count in self.known.most_common():
            yield f"known: {row.function} {row.kind} ({count} times): {row.reason}"
        for row in self.stale():
            yield f"stale: {row.function} {row.kind}: no case needed this row: {row.reason}"
        yield (
            f"{self.cases} cases of {len(self.functions)} functions: {self.agreed} agreed"
            f" ({self.both_raised} by raising), {self.unsupported} have no kernel in TensorFlow,"
            f" {sum(self.known.values())} known differences,"
            f" {len(self.groups)} groups of disagreements"
        )
