"""The CUDA graph of a control program: the kernels of its parts, and conditional graphs.

Addresses of external memory are bound before a launch. If they changed since the last one, kernel
parameters are updated or, if the driver refuses, the graph is rebuilt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from thalweg import errors
from thalweg.codegen.cuda.tensor_map import BYTES
from thalweg.device.cuda.control_parts import PlacedPart
from thalweg.device.cuda.driver import Condition, Graph, KernelNode
from thalweg.device.cuda.listing import CudaCall
from thalweg.device.cuda.memory import DeviceBuffer, Memory
from thalweg.lower.control.program import BufferView, Item, Loop, Part
from thalweg.lower.memory.buffers import Buffer, BufferKind

_Copy = tuple[int, int, int]  # target, source, size
_Launch = tuple[PlacedPart, int]  # a part, and the index of a launch in it


class ControlGraph:
    """The CUDA graph of a program, with its argument words."""

    def __init__(
        self,
        items: Sequence[Item],
        parts: Mapping[Part, PlacedPart],
        known: Mapping[BufferView, int],
        fault: int,
        arena: int,
        stop: int,
        memory: Memory,
    ) -> None:
        """`known`: the addresses of views that are fixed."""
        self._items, self._parts, self._memory = items, parts, memory
        self._known, self._fault, self._arena, self._stop = known, fault, arena, stop
        self._bound: dict[BufferView, int] = {}
        self._words_of: dict[BufferView, list[tuple[int, int, _Launch]]] = {}
        self._changed: dict[_Launch, None] = {}
        self._constants: dict[int, DeviceBuffer] = {}
        count = sum(placed.word_count for placed in parts.values())
        self._words = np.zeros(max(count, 1), np.int64)
        for placed in parts.values():
            for number in range(len(placed.listing.calls)):
                self._lay_out((placed, number))
        self._maps = np.zeros(BYTES * (self._place_maps() + 1), np.uint8)
        self._graph: Graph | None = None
        self._nodes: dict[tuple[_Launch, int], tuple[Graph, int]] = {}

    # Words

    def _lay_out(self, launch: _Launch) -> None:
        placed, number = launch
        call = placed.listing.calls[number]
        first = placed.start + call.words
        self._words[first] = self._fault
        for word, buffer, shift in placed.addresses(call):
            view = placed.part.views.get(buffer)
            if view is None:
                self._words[word] = self._address(placed, buffer) + shift
            elif view in self._known:
                self._words[word] = self._known[view] + shift
            if view is not None:
                self._words_of.setdefault(view, []).append((word, shift, launch))
        after = first + 1 + len(call.launch.buffers)
        self._words[after] = self._arena + call.scratch
        self._words[after + 1 : first + call.specialized.word_count] = call.specialized.words

    def _address(self, placed: PlacedPart, buffer: Buffer) -> int:
        if buffer.kind is BufferKind.TEMPORARY:
            return self._arena + placed.listing.arena.offsets[buffer]
        if id(buffer) not in self._constants:
            self._constants[id(buffer)] = self._memory.uploaded(np.asarray(buffer.source), "")
        return self._constants[id(buffer)].address

    def bind(self, view: BufferView, address: int) -> None:
        """Bind a view to external memory."""
        if self._bound.get(view) == address:
            return
        self._bound[view] = address
        for word, shift, launch in self._words_of.get(view, ()):
            self._words[word] = address + shift
            self._changed[launch] = None

    # The graph

    def prepare(self, upload: _Copy, download: _Copy) -> Graph:
        """The graph with the current words: built by the first call, updated by later ones. It
        begins with an upload and ends with a download."""
        if self._graph is not None and not self._update_changed():
            self.close()
        if self._graph is None:
            self._graph = self._built(upload, download)
        self._changed.clear()
        return self._graph

    def _update_changed(self) -> bool:
        """Update the launches that have changed; False if the driver refuses."""
        try:
            for launch in self._changed:
                self._update(launch)
        except errors.InternalError:
            if self._memory.context.lost is not None:
                raise
            return False
        return True

    def _built(self, upload: _Copy, download: _Copy) -> Graph:
        graph = self._memory.context.graph()
        ends = self._add_all(self._items, graph, [graph.add_upload(*upload, ())])
        graph.add_download(*download, ends)
        graph.finish()
        return graph

    def _add_all(self, items: Sequence[Item], graph: Graph, before: list[int]) -> list[int]:
        """Add items in sequence; returns the last nodes."""
        for item in items:
            if isinstance(item, Part):
                before = self._add_part(self._parts[item], graph, before)
            elif isinstance(item, Loop):
                before = self._add_conditional(item.truth, item.body, graph, before, repeats=True)
            else:
                before = self._add_conditional(item.truth, item.if_true, graph, before)
                before = self._add_conditional(
                    item.truth, item.if_false, graph, before, negated=True
                )
        return before

    def _add_conditional(
        self,
        truth: BufferView,
        body: Sequence[Item],
        graph: Graph,
        before: list[int],
        repeats: bool = False,
        negated: bool = False,
    ) -> list[int]:
        if not body:
            return before
        condition = Condition(self._known[truth], self._fault, self._stop, negated)
        node, inside = graph.add_conditional(condition, repeats, before)
        self._add_all(body, inside, [])
        inside.finish()
        return [node]

    def _add_part(self, placed: PlacedPart, graph: Graph, before: list[int]) -> list[int]:
        ends: list[int] = []
        followed: set[int] = set()
        for number, needed in enumerate(placed.after()):
            followed.update(needed)
            after = [ends[one] for one in needed] or before
            ends.append(self._add_launch((placed, number), graph, after))
        return [end for number, end in enumerate(ends) if number not in followed] or before

    def _add_launch(self, launch: _Launch, graph: Graph, after: list[int]) -> int:
        """Add the entries of a launch in sequence; returns the last node."""
        call = launch[0].listing.calls[launch[1]]
        for entry, shape in enumerate(call.shapes):
            self._memory.context.allow_shared(call.kernel.functions[entry], shape.shared_bytes)
            node = graph.add_kernel(self._kernel(launch, entry), after)
            self._nodes[launch, entry] = graph, node
            after = [node]
        return after[0]

    def _update(self, launch: _Launch) -> None:
        for entry in range(len(launch[0].listing.calls[launch[1]].shapes)):
            graph, node = self._nodes[launch, entry]
            graph.update(node, self._kernel(launch, entry))

    def _kernel(self, launch: _Launch, entry: int) -> KernelNode:
        placed, number = launch
        call = placed.listing.calls[number]
        first = placed.start + call.words
        return KernelNode(
            call.kernel.functions[entry],
            call.shapes[entry],
            self._words.ctypes.data + 8 * first,
            call.specialized.word_count,
            self._encoded(launch, call, first),
            len(call.kernel.tensor_maps),
        )

    # Tensor maps

    def _place_maps(self) -> int:
        """Assign offsets to the tensor maps of each launch; returns their number."""
        self._map_offsets: dict[_Launch, int] = {}
        count = 0
        for placed in self._parts.values():
            for number, call in enumerate(placed.listing.calls):
                self._map_offsets[placed, number] = count
                count += len(call.kernel.tensor_maps)
        return count

    def _encoded(self, launch: _Launch, call: CudaCall, first: int) -> int:
        """Encode the tensor maps of a launch for the current addresses; returns their address."""
        if not call.kernel.tensor_maps:
            return 0
        start = -(-self._maps.ctypes.data // 64) * 64 + BYTES * self._map_offsets[launch]
        words = self._words[first : first + call.specialized.word_count].tolist()
        for at, spec in enumerate(call.kernel.tensor_maps):
            self._memory.context.encode(spec.resolved(words), start + BYTES * at)
        return start

    def close(self) -> None:
        """Free the graph. It must not be running."""
        if self._graph is not None:
            self._graph.close()
            self._graph = None
        self._nodes.clear()
