"""`thalweg migrate --check`: which TensorFlow names of a program exist here, and which do not."""

from __future__ import annotations

import argparse
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import thalweg
from thalweg.cli import sources, tf_uses
from thalweg.cli.arguments import Subparsers, add_json, subcommand
from thalweg.cli.problem import Problem, named
from thalweg.cli.replacements import advice
from thalweg.cli.report import Report, bold, printable, show
from thalweg.platform.caches import memoized

_ABOUT = """\
Tell which TensorFlow names of a program exist here and which do not, with the place of
each and what to use instead. Nothing is run and nothing is changed. Aliases are followed:
`import tensorflow.compat.v1 as tf`, `from tensorflow.contrib import slim`,
`layers = tf.layers`. Arguments by keyword are looked up, too. A program that passes runs
with `import thalweg as tf` in the place of its import.

The exit status is 1 if something is missing."""

_EXAMPLES = """\
examples:
  thalweg migrate --check train.py
  thalweg migrate --check models/ notebooks/     all Python files and notebooks below
  thalweg migrate --check train.py --all         list what exists as well
  thalweg migrate --check . --json | jq '.missing[].name' | sort | uniq -c"""


class Finding(NamedTuple):
    """Something that a program uses and that is not here."""

    place: str
    line: int
    column: int
    name: str
    advice: str

    @property
    def text(self) -> str:
        """One line that editors know how to jump to."""
        hint = f": {self.advice}" if self.advice else ""
        return f"{self.place}:{self.line}:{self.column}: {self.name} is not here{hint}"


def add(commands: Subparsers) -> None:
    """Add the command to the command line."""
    command = subcommand(
        commands, "migrate", "which TensorFlow names of a program exist here", _ABOUT, _EXAMPLES
    )
    command.add_argument("paths", nargs="+", metavar="PATH", help="Python files or folders")
    command.add_argument(
        "--check", action="store_true", required=True, help="look only: there is no rewriting"
    )
    command.add_argument("--all", action="store_true", help="list the names that exist as well")
    add_json(command)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    check = Check()
    for path in args.paths:
        with named(path):
            for file in sources.files(path):
                check.file(file)
    if args.json:
        show(check.report(), as_json=True)
    else:
        _print(check, args.all)
    return 1 if check.missing or check.unreadable else 0


class Check:
    """What was found in some files."""

    def __init__(self) -> None:
        self.files = 0
        self.existing: Counter[str] = Counter()
        self.missing: list[Finding] = []
        self.unreadable: list[str] = []

    def file(self, path: str) -> None:
        """Look at a file; one that cannot be read is noted, and the others are looked at."""
        self.files += 1
        try:
            with named(path):
                for source in sources.read(path):
                    self._source(source)
        except Problem as problem:
            self.unreadable.append(str(problem))

    def _source(self, source: sources.Source) -> None:
        for use in _uses(source):
            if exists(use.name):
                self.existing[use.name] += 1
                self.missing += _unknown_keywords(source, use)
            else:
                place = (source.place, use.line, use.column)
                self.missing.append(Finding(*place, f"tf.{use.name}", advice(use.name)))

    def report(self) -> Report:
        """All of it, for scripts."""
        facts = {"files": self.files, "unreadable": self.unreadable}
        existing = [{"name": f"tf.{n}", "uses": c} for n, c in sorted(self.existing.items())]
        missing = [finding._asdict() for finding in self.missing]
        return Report("migration", "", facts, {"missing": missing, "existing": existing})


def _uses(source: sources.Source) -> Iterable[tf_uses.Use]:
    try:
        return tf_uses.uses(source.text)
    except SyntaxError as error:
        where = f"{source.place}:{error.lineno or 1}:{error.offset or 1}"
        raise Problem(f"{where}: not Python 3: {error.msg}") from error


def _print(check: Check, every: bool) -> None:
    for finding in check.missing:
        print(printable(finding.text))
    for problem in check.unreadable:
        print(printable(problem))
    if every:
        for name, count in sorted(check.existing.items()):
            print(f"{count:6}  tf.{printable(name)}")
    print(bold(_summary(check)))


def _summary(check: Check) -> str:
    absent = len({finding.name for finding in check.missing})
    files = f"{check.files} file" + ("s" if check.files != 1 else "")
    damaged = f", {len(check.unreadable)} of them unreadable" if check.unreadable else ""
    there = len(check.existing)
    if not absent and not there:
        return f"{files}{damaged}: no names of TensorFlow"
    verb = "is" if absent == 1 else "are"
    return f"{files}{damaged}: {there} names of TensorFlow are here, {absent} {verb} not"


# What exists here


@memoized(10_000)
def exists(name: str) -> bool:
    """Whether a name below `tf.` is here; attributes of objects are taken to be."""
    value: Any = thalweg
    for part in name.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            return False
        except ImportError:  # it is here, and says what to install
            return True
        if not isinstance(value, ModuleType | type):
            return True  # what objects have is known when they are made
    return True


def _unknown_keywords(source: sources.Source, use: tf_uses.Use) -> Iterator[Finding]:
    known = _keywords(use.name)
    if known is None:
        return
    for keyword in use.keywords:
        if keyword not in known:
            there = ", ".join(k for k in known if k != "self")
            name = f"tf.{use.name}({keyword}=)"
            yield Finding(source.place, use.line, use.column, name, f"it takes {there}")


@memoized(10_000)
def _keywords(name: str) -> tuple[str, ...] | None:
    """The arguments that a function or class takes by keyword; None if any, or nobody knows."""
    value: Any = thalweg
    for part in name.split("."):
        value = getattr(value, part, None)
    if not callable(value):
        return None
    return _parameters(value)


def _parameters(function: Callable[..., Any]) -> tuple[str, ...] | None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return None
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(p.name for p in parameters if p.kind in kinds)
