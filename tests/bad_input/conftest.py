"""A program for every test, in a session of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bad_input.program import Program


@pytest.fixture
def program() -> Iterator[Program]:
    made = Program()
    with made.graph.as_default():
        yield made
    made.session.close()
