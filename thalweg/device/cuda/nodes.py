"""The launches of a GPU program as kernel nodes of CUDA graphs.

Launches, their kernels and their argument words come in. Addresses that vary between calls are
parameters of kernels: binding one marks the launches whose nodes must be updated.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from thalweg.codegen.cuda.tensor_map import BYTES
from thalweg.device.cuda.driver import Context, Graph, KernelNode
from thalweg.device.cuda.graph_template import PlacedLaunch
from thalweg.device.cuda.kernels import LoadedKernel


class LaunchNodes:
    """Launches with their argument words, and their nodes."""

    versions, early, deliver = (), (), None

    def __init__(
        self,
        launches: Sequence[PlacedLaunch],
        kernels: Sequence[LoadedKernel],
        words: NDArray[np.int64],
        context: Context,
    ) -> None:
        self._launches, self._kernels, self._context = launches, kernels, context
        self.words = words
        self._launch_of = np.repeat(np.arange(len(launches)), [one.words for one in launches])
        self._changed: set[int] = set()  # launches whose parameters have changed
        self.is_ready = False  # the graphs have the current words
        maps = [len(kernels[launch.kernel].tensor_maps) for launch in launches]
        *self._map_starts, count = accumulate(maps, initial=0)
        self._maps = np.zeros(BYTES * (count + 1), np.uint8)
        self._nodes: dict[tuple[int, int], tuple[Graph, int]] = {}  # by launch and entry

    def bind(self, targets: Collection[tuple[int, int]], address: int) -> None:
        """Point argument words to memory: each target is (word, byte offset)."""
        for word, shift in targets:
            if self.words[word] != address + shift:
                self.words[word] = address + shift
                self._changed.add(int(self._launch_of[word]))
                self.is_ready = False

    def add_launch(self, graph: Graph, number: int, after: Sequence[int]) -> int:
        """Add the entries of a launch in sequence; returns the last node."""
        launch = self._launches[number]
        for entry, shape in enumerate(launch.shapes):
            function = self._kernels[launch.kernel].functions[entry]
            self._context.allow_shared(function, shape.shared_bytes)
            node = graph.add_kernel(self._kernel_node(number, entry), after)
            self._nodes[number, entry] = graph, node
            after = [node]
        return after[0]

    def update_changed(self) -> None:
        """Update the nodes of the launches that have changed."""
        for number in self._changed:
            for entry in range(len(self._launches[number].shapes)):
                graph, node = self._nodes[number, entry]
                graph.update(node, self._kernel_node(number, entry))
        self._changed.clear()

    def _kernel_node(self, number: int, entry: int) -> KernelNode:
        launch = self._launches[number]
        kernel = self._kernels[launch.kernel]
        maps = self._encode_maps(number, kernel)
        return KernelNode(
            kernel.functions[entry],
            launch.shapes[entry],
            self.words.ctypes.data + 8 * launch.word,
            launch.words,
            maps,
            len(kernel.tensor_maps),
        )

    def _encode_maps(self, number: int, kernel: LoadedKernel) -> int:
        """Encode the tensor maps of a launch for the current addresses; returns their address."""
        if not kernel.tensor_maps:
            return 0
        start = -(-self._maps.ctypes.data // 64) * 64 + BYTES * self._map_starts[number]
        launch = self._launches[number]
        words = self.words[launch.word : launch.word + launch.words].tolist()
        for at, spec in enumerate(kernel.tensor_maps):
            self._context.encode(spec.resolved(words), start + BYTES * at)
        return start
