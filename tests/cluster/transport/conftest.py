"""Endpoints for tests, which all end with the test, and leave nothing behind."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from thalweg.cluster.transport.endpoint import Endpoint
from thalweg.cluster.transport.peer import Peer
from thalweg.cluster.transport.security import Security
from thalweg.cluster.wire import Kind, Message

LONG = 30  # seconds: more than anything here takes


class Recorder:
    """A handler that answers every STATUS with what came, and keeps everything else."""

    def __init__(self) -> None:
        self.messages: SimpleQueue[tuple[Peer, Message]] = SimpleQueue()
        self.losses: SimpleQueue[tuple[Peer, Exception]] = SimpleQueue()

    def received(self, peer: Peer, message: Message) -> None:
        if message.kind is Kind.STATUS:
            peer.reply(message, Message(Kind.DONE, message.step, message.fields, message.values))
        else:
            self.messages.put((peer, message))

    def lost(self, peer: Peer, error: Exception) -> None:
        self.losses.put((peer, error))


def ask(peer: Peer, *values: Any, **fields: Any) -> Message:
    """The answer to a STATUS, or the error it got."""
    answers: SimpleQueue[tuple[Message | None, Exception | None]] = SimpleQueue()
    peer.request(Message(Kind.STATUS, 0, fields, values), lambda *answer: answers.put(answer))
    answer, error = answers.get(timeout=LONG)
    if answer is None:
        assert error is not None
        raise error
    return answer


def own_descriptors() -> dict[str, str]:
    """Where the open files of this process lead."""
    result = dict[str, str]()
    for file in os.listdir("/proc/self/fd"):
        try:
            result[file] = os.readlink(f"/proc/self/fd/{file}")
        except OSError:
            continue
    return result


def shared_memory() -> set[str]:
    """The open files of this process that are memory which tasks share."""
    return {file for file, path in own_descriptors().items() if "memfd:thalweg" in path}


def own_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("thalweg-cluster")}


MakeEndpoint = Callable[..., Endpoint]


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[MakeEndpoint]:
    """Makes endpoints that share a key of their own; afterwards no thread, memory or socket of
    theirs is left."""
    monkeypatch.setenv("THALWEG_CACHE", str(tmp_path))
    before, held = own_threads(), shared_memory()
    made = list[Endpoint]()

    def make(
        bind: str | None = "127.0.0.1:0",
        security: Security | None = None,
        shares_memory: bool = True,
        handler: Any = None,
    ) -> Endpoint:
        made.append(Endpoint(handler or Recorder(), bind, security, shares_memory))
        return made[-1]

    yield make
    for each in made:
        each.close()
    for thread in own_threads() - before:
        thread.join(LONG)
        assert not thread.is_alive()
    gc.collect()
    assert not shared_memory() - held
