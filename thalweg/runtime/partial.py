"""Partial runs: one step, fed and fetched in several calls."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from thalweg import errors
from thalweg.graph.node import Node, Tensor
from thalweg.graph.subgraph import needed
from thalweg.lower.regions import with_traces
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.dataflow.unfold import has_primitives
from thalweg.runtime.engine import Engine
from thalweg.runtime.executor import fresh
from thalweg.runtime.fetches import Fetches
from thalweg.runtime.kernels import run
from thalweg.runtime.plan import backend_of, schedule


class PartialRun:
    """The state of a partial run: its slots, and the nodes that have run."""

    def __init__(self, declared: Fetches, feeds: Sequence[Tensor], engine: Engine) -> None:
        nodes = needed(declared.tensors, declared.targets, dict.fromkeys(feeds))
        if not nodes:
            raise errors.invalid("No nodes in the graph need to run for this partial run.")
        if has_primitives(nodes):
            raise errors.invalid("A step that has control primitives cannot be run in parts.")
        tensors = [tensor for node in nodes for tensor in node.outputs]
        self._placement = engine.placer.place(nodes)
        units = with_traces(nodes, tensors)
        backend = backend_of(engine.devices[0], self._placement, engine.devices)
        step = schedule(units, tensors, feeds, self._placement, backend)
        self._declared = declared
        self._instructions = step.instructions
        self._slots = step.slots([None] * len(feeds))
        self._slot_of = dict(zip(tensors, step.fetches, strict=True))
        self._slot_of.update((tensor, slot) for slot, tensor in enumerate(feeds))
        self._feeds, self._fed = set(feeds), set[Tensor]()
        self._done: set[Node] = set()
        self._fetched: set[Tensor] = set()
        self._resources = engine.resources
        self._lock = threading.Lock()

    def advance(self, wanted: Fetches, feeds: Mapping[Tensor, Any]) -> list[Any]:
        """Store more feeds and compute the `wanted` fetches."""
        with self._lock:
            self._check(wanted, feeds)
            for tensor, value in feeds.items():
                self._slots[self._slot_of[tensor]] = value
                self._fed.add(tensor)
            self._run(wanted)
            self._fetched.update(wanted.tensors)
            return [fresh(self._slots[self._slot_of[t]]) for t in wanted.tensors]

    @property
    def is_done(self) -> bool:
        """Whether everything declared has been fetched and run."""
        declared = self._declared
        return self._fetched.issuperset(declared.tensors) and self._done.issuperset(
            declared.targets
        )

    def _check(self, wanted: Fetches, feeds: Mapping[Tensor, Any]) -> None:
        for tensor in feeds:
            if tensor not in self._feeds:
                raise errors.invalid(
                    f"The feed {tensor.name} was not specified in partial_run_setup."
                )
            if tensor in self._fed:
                raise errors.invalid(f"The feed {tensor.name} has already been fed.")
        for tensor in wanted.tensors:
            if tensor not in self._declared.tensors:
                raise errors.invalid(
                    f"The fetch {tensor.name} was not specified in partial_run_setup."
                )

    def _run(self, wanted: Fetches) -> None:
        nodes = [
            node
            for node in needed(wanted.tensors, wanted.targets, dict.fromkeys(self._feeds))
            if node not in self._done
        ]
        for node in nodes:
            missing = [t for t in node.inputs if t in self._feeds - self._fed]
            if missing:
                raise errors.InvalidArgumentError(
                    None, node, f"You must feed a value for {missing[0].name} before this fetch"
                )
        pending = set(nodes)
        with np.errstate(all="ignore"):
            for instruction in self._instructions:
                if not pending.isdisjoint(instruction.nodes):
                    resources = self._resources.on(self._placement[instruction.nodes[0]])
                    run([instruction], self._slots, resources, Cancellation())
                    self._done.update(instruction.nodes)
