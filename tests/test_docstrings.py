"""The docstrings of public names: the examples run and print what they say, sections are complete.

An example sees `tf`, `np` and `sess`, a default session on an empty graph, and works in an empty
folder. `most_used_names.txt` lists the functions and classes that public programs use most.
"""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tools.reference import Docstring, entries, members, parameters_of, parse

MOST_USED = (Path(__file__).parent / "most_used_names.txt").read_text().split()
_NUMBER = r"[-+]?(?:\d+\.\d*|\.\d+)(?:e[-+]?\d+)?"


class _Checker(doctest.OutputChecker):
    """Compares what was printed; fractions to five digits, as targets differ in the last ones."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        """Whether the texts agree but for white space and the last digits of fractions."""
        if super().check_output(want, got, optionflags):
            return True
        texts = ["".join(re.sub(_NUMBER, "#", text).split()) for text in (want, got)]
        numbers = [[float(n) for n in re.findall(_NUMBER, text)] for text in (want, got)]
        return texts[0] == texts[1] and np.allclose(*numbers, rtol=1e-5, atol=1e-7)


def documented() -> Iterator[tuple[str, Any]]:
    """Each public function, class and method by its name."""
    for entry in entries():
        if not callable(entry.value):
            continue
        inside = members(entry.value) if isinstance(entry.value, type) else ()
        for name, value in [("", entry.value), *inside]:
            yield f"{entry.name}.{name}".rstrip("."), value


DOCSTRINGS = {name: (value, inspect.getdoc(value) or "") for name, value in documented()}
EXAMPLES = {name: text for name, (_, text) in DOCSTRINGS.items() if ">>>" in text}


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tf.InteractiveSession]:
    monkeypatch.chdir(tmp_path)
    tf.reset_default_graph()
    interactive_session = tf.InteractiveSession()
    yield interactive_session
    interactive_session.close()
    tf.reset_default_graph()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_prints_what_it_says(name: str, session: tf.InteractiveSession) -> None:
    names = {"tf": tf, "np": np, "sess": session, "__name__": "example"}
    test = doctest.DocTestParser().get_doctest(EXAMPLES[name], names, name, name, 0)
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    report: list[str] = []
    doctest.DocTestRunner(_Checker(), optionflags=flags).run(test, out=report.append)
    assert test.examples
    assert not report, "".join(report)


def found(name: str) -> Any:
    """The object of a name such as `tf.nn.relu`."""
    value: Any = tf
    for part in name.split(".")[1:]:
        value = getattr(value, part)
    return value


def parameters(value: Any) -> list[str]:
    """What a caller may pass by name."""
    return [p.name for p in parameters_of(value) if p.name != "self" and p.name[0] != "_"]


def wrong_arguments(doc: Docstring, wanted: list[str]) -> Iterator[str]:
    """Parameters that a docstring leaves out, or that are not there."""
    yield from (f"{name} is not described" for name in wanted if name not in doc.arguments)
    yield from (f"{name} is no parameter" for name in doc.arguments if name not in wanted)


def faults(doc: Docstring, wanted: list[str]) -> Iterator[str]:
    """What a docstring lacks, or says of parameters that are not there."""
    yield from wrong_arguments(doc, wanted)
    if not doc.summary:
        yield "there is no summary"
    if ">>>" not in doc.example:
        yield "there is no example"


@pytest.mark.parametrize("name", MOST_USED)
def test_a_name_used_much_is_described_whole(name: str) -> None:
    value = found(name)
    assert list(faults(parse(inspect.getdoc(value)), parameters(value))) == []


def test_arguments_are_described_all_or_not_at_all() -> None:
    found: dict[str, list[str]] = {}
    for name, (value, text) in DOCSTRINGS.items():
        doc = parse(text)
        if doc.arguments and (wrong := list(wrong_arguments(doc, parameters(value)))):
            found[name] = wrong
    assert found == {}


def test_what_a_docstring_lacks_is_found() -> None:
    doc = parse("A sum.\n\nArgs:\n    x: a number.\n    z: another,\n        large one.\n")
    assert doc.arguments == {"x": "a number.", "z": "another, large one."}
    assert list(faults(doc, ["x", "y"])) == [
        "y is not described",
        "z is no parameter",
        "there is no example",
    ]


def test_fractions_are_compared_to_five_digits() -> None:
    checker = _Checker()
    assert checker.check_output("array([ 0.1, 2. ])", "array([0.1000001, 2.])", 0)
    assert not checker.check_output("array([0.1, 2.])", "array([0.101, 2.])", 0)
    assert not checker.check_output("array([0.1, 2.])", "array([0.1, 2.], dtype=float32)", 0)
