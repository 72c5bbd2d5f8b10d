"""The task registry of a cluster on Ray, without Ray: who is where, and who is told."""

from __future__ import annotations

import sys

import pytest

from thalweg.cluster.launch.ray_library import library
from thalweg.cluster.launch.ray_task import TaskRegistry
from thalweg.cluster.launch.task import Task

PS, WORKER = Task("ps", 0), Task("worker", 0)


class Actor:
    """Stands in for the handle of an actor: remembers what it is told."""

    def __init__(self):
        self.messages = []
        self.update = self
        self.remote = lambda *given: self.messages.append(given)


def test_others_are_told_who_comes():
    registry, ps, worker = TaskRegistry(), Actor(), Actor()
    assert registry.register(PS, "a:1", True, ps) == (1, {"ps": {0: "a:1"}})
    everybody = (2, {"ps": {0: "a:1"}, "worker": {0: "b:2"}})
    assert registry.register(WORKER, "b:2", True, worker) == everybody == registry.cluster()
    assert ps.messages == [everybody]
    assert worker.messages == []


@pytest.mark.parametrize(
    ("offered", "keeps", "found"),
    [("a:9", True, "a:1"), ("a:9", False, "a:9"), ("b:9", True, "b:9")],
)
def test_who_comes_back_to_the_same_machine_keeps_its_address(offered, keeps, found):
    registry, worker = TaskRegistry(), Actor()
    registry.register(WORKER, "c:3", True, worker)
    registry.register(PS, "a:1", True, Actor())
    assert registry.register(PS, offered, keeps, Actor())[1]["ps"] == {0: found}
    assert worker.messages[-1][1]["ps"] == {0: found}


def test_without_ray_the_name_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'thalweg\[ray\]'"):
        library()
