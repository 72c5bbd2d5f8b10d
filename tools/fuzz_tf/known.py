"""The differences that stay, each with its reason.

A row names functions and kinds of disagreement by patterns (`fnmatch`), and narrows them by the
dtype, by a regular expression found in the case's code or in the disagreement's detail, or by a
condition.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tools.fuzz_tf.case import Case


@dataclass(frozen=True)
class Known:
    """One difference that stays: what it explains and why."""

    function: str
    kind: str
    reason: str
    dtype: str = "*"
    code: str = ""
    detail: str = ""
    when: Callable[[Case], bool] | None = None

    def explains(self, case: Case, kind: str, detail: str) -> bool:
        """Whether a disagreement is this one."""
        return (
            self._names(case.function)
            and _any(self.kind, kind)
            and _any(self.dtype, case.dtype)
            and bool(re.search(self.code, "\n".join(case.code)))
            and bool(re.search(self.detail, detail))
            and (self.when is None or self.when(case))
        )

    def concerns(self, functions: Iterable[str]) -> bool:
        """Whether one of the functions is named."""
        return any(self._names(function) for function in functions)

    def _names(self, function: str) -> bool:
        return _any(self.function, function)


def _any(patterns: str, word: str) -> bool:
    return any(fnmatchcase(word, pattern.strip()) for pattern in patterns.split("|"))


def explanation(table: tuple[Known, ...], case: Case, kind: str, detail: str) -> Known | None:
    """The first row that explains a disagreement."""
    return next((row for row in table if row.explains(case, kind, detail)), None)


TABLE: tuple[Known, ...] = ()
