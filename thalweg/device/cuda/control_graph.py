"""The CUDA graph of a control program: the kernels of its parts, and conditional graphs.

Addresses of external memory are bound before a launch. If they changed since the last one, kernel
parameters are updated or, if the driver refuses, the graph is rebuilt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from thalweg import errors
from thalweg.device.control import ViewLayout
from thalweg.device.cuda.dependencies import serial_edges
from thalweg.device.cuda.driver import Condition, Context, Graph
from thalweg.device.cuda.graph_template import PlacedLaunch
from thalweg.device.cuda.listing import CudaListing
from thalweg.device.cuda.loading import placed
from thalweg.device.cuda.nodes import LaunchNodes
from thalweg.device.program_template import FAULT
from thalweg.lower.control.program import BufferView, ControlProgram, Item, Loop, Part

_Copy = tuple[int, int, int]  # target, source, size


class ControlLaunches:
    """The launches of a control program, part by part, and their argument words. `offsets`: those
    of views in the memory of an invocation, from the temporaries on."""

    def __init__(
        self,
        program: ControlProgram,
        listings: Mapping[Part, CudaListing],
        offsets: Mapping[BufferView, int],
    ) -> None:
        self.items, layout = program.items, ViewLayout(listings, offsets)
        self.words_of = layout.views
        #: where the views lie that decide on loops and conditionals: base and offset
        self.truths = {
            item.truth: layout.address_of(item.truth)
            for item in program.walk()
            if not isinstance(item, Part)
        }
        self.parts: dict[Part, range] = {}  # the numbers of its launches
        self.launches: list[PlacedLaunch] = []
        for part, listing in listings.items():
            first, after = len(self.launches), _edges(part, listing)
            for number, call in enumerate(listing.calls, first):
                launch = placed(call, number)._replace(after=after[number - first])
                self.launches.append(launch)
            self.parts[part] = range(first, len(self.launches))
        self.kernels = [call.kernel for listing in listings.values() for call in listing.calls]
        fields = layout.fields({})
        self.words, self.bases = fields["words"], fields["bases"]
        self.constants = fields["constants"]


def _edges(part: Part, listing: CudaListing) -> list[tuple[int, ...]]:
    """The dependencies of each launch of a part. If two buffers are bound to one view, their
    hazards are unknown: the launches are serialized."""
    views = list(part.views.values())
    if len(set(map(id, views))) < len(views):
        return serial_edges(len(listing.calls))
    return [call.after for call in listing.calls]


class ControlGraph(LaunchNodes):
    """The CUDA graph of a program, with its argument words."""

    def __init__(
        self, plan: ControlLaunches, bases: Sequence[int], stop: int, context: Context
    ) -> None:
        """`bases`: the addresses of the bases of the words; `stop`: that of a byte that ends all
        loops."""
        self._bases = np.array(bases, np.int64)
        words = self._bases[plan.bases] + plan.words
        super().__init__(plan.launches, plan.kernels, words, context)
        self._plan, self._stop_address = plan, stop
        self._graph: Graph | None = None

    # The graph

    def prepare(self, upload: _Copy, download: _Copy) -> Graph:
        """The graph with the current words: built by the first call, updated by later ones. It
        begins with an upload and ends with a download."""
        if self._graph is not None and not self._updates():
            self.close()
        if self._graph is None:
            self._graph = self._built(upload, download)
        self._changed.clear()
        return self._graph

    def _updates(self) -> bool:
        """Update the launches that have changed; False if the driver refuses."""
        try:
            self.update_changed()
        except errors.InternalError:
            if self._context.lost is not None:
                raise
            return False
        return True

    def _built(self, upload: _Copy, download: _Copy) -> Graph:
        graph = self._context.graph()
        ends = self._add_all(self._plan.items, graph, [graph.add_upload(*upload, ())])
        graph.add_download(*download, ends)
        graph.finish()
        return graph

    def _add_all(self, items: Sequence[Item], graph: Graph, before: list[int]) -> list[int]:
        """Add items in sequence; returns the last nodes."""
        for item in items:
            if isinstance(item, Part):
                before = self._add_part(self._plan.parts[item], graph, before)
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
        base, offset = self._plan.truths[truth]
        address, fault = int(self._bases[base]) + offset, int(self._bases[FAULT])
        condition = Condition(address, fault, self._stop_address, negated)
        node, inside = graph.add_conditional(condition, repeats, before)
        self._add_all(body, inside, [])
        inside.finish()
        return [node]

    def _add_part(self, launches: range, graph: Graph, before: list[int]) -> list[int]:
        ends: list[int] = []
        followed: set[int] = set()
        for number in launches:
            needed = self._launches[number].after
            followed.update(needed)
            after = [ends[one] for one in needed] or before
            ends.append(self.add_launch(graph, number, after))
        return [end for number, end in enumerate(ends) if number not in followed] or before

    def close(self) -> None:
        """Free the graph. It must not be running."""
        if self._graph is not None:
            self._graph.close()
            self._graph = None
        self._nodes.clear()
