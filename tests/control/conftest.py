"""Tests of control flow run in a new graph, once for each way to run control nodes."""

from collections.abc import Iterator

import pytest

import thalweg as tf
from tests.control import lowerings


@pytest.fixture(params=lowerings.NAMES)
def lowering(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How control nodes run."""
    lowerings.choose(request.param, monkeypatch)
    return request.param


@pytest.fixture(params=lowerings.NAMES[1:])
def on_executor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How control nodes run where native code is left out."""
    lowerings.choose(request.param, monkeypatch)
    return request.param


@pytest.fixture
def sess() -> Iterator[tf.Session]:
    """A session over a graph of its own."""
    with tf.Graph().as_default(), tf.Session() as session:
        yield session
