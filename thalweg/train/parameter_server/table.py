"""One table of a parameter server: values by key, in one shard on each server that has keys.

A pull sends each server the indices of the requested rows and returns only those; a push sends each
server the gradients of its keys, and the optimizer's update runs there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from thalweg.graph.composite import IndexedSlices
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.scopes import colocate_with, control_dependencies, device, name_scope
from thalweg.ops.arrays import indexing, joining, partitioning
from thalweg.ops.core import basic, filling, shaping
from thalweg.ops.state.accumulators import SparseConditionalAccumulator
from thalweg.platform.described import described
from thalweg.public import public
from thalweg.train.optimizers.optimizer import Optimizer
from thalweg.train.parameter_server.key_ranges import KeyRanges
from thalweg.train.parameter_server.load import LoadCounters
from thalweg.variables.scope import get_variable
from thalweg.variables.variable import Variable

#: A local step that is never stale: the chief orders the updates.
_NEVER_STALE: Final = np.iinfo(np.int64).max

#: Runs a node on the chief after each step of all workers, given a function that builds it.
AtRoundEnd = Callable[[Callable[[], Any]], None]


@public("train.ParameterTable")
class ParameterTable:
    """Values by key, distributed over servers; created by `tf.train.ParameterServer.table`.

    Attributes:
        shards: one variable for each server that has keys, the rows in the order of the keys.
        key_ranges: the ranges of keys and their servers.
    """

    def __init__(
        self,
        name: str,
        keys: KeyRanges,
        shape: Sequence[int],
        dtype: DType,
        initializer: Any,
        optimizer: Optimizer,
        counters: Mapping[str, LoadCounters],
        at_round_end: AtRoundEnd | None,
    ) -> None:
        self.name = name
        self._keys = keys
        self._optimizer = optimizer
        self._at_round_end = at_round_end
        self._counters = [counters[owner] for owner in keys.owners]
        self.shards: list[Variable] = [
            _shard(f"{name}_{number}", owner, [keys.sizes[owner], *shape], dtype, initializer)
            for number, owner in enumerate(keys.owners)
        ]
        self._sums: list[SparseConditionalAccumulator] = []

    def __repr__(self) -> str:
        return described(self, self.name, ranges=len(self.key_ranges), servers=len(self.shards))

    @property
    def key_ranges(self) -> list[Any]:
        """(start, stop, device) of each range of keys, in order."""
        return list(self._keys.ranges)

    def held(self, server: str) -> tuple[int, int]:
        """The number of keys on a server, and the bytes of their values."""
        if server not in self._keys.owners:
            return 0, 0
        shard = self.shards[self._keys.owners.index(server)]
        elements = shard.shape.num_elements() or 0
        return self._keys.sizes[server], elements * shard.dtype.base_dtype.size

    def pull(self, keys: Any, name: str | None = None) -> Tensor:
        """The values of keys.

        Args:
            keys: integers below the number of keys, of any shape.
            name: the name of the nodes.

        Returns:
            A tensor of the shape of `keys` followed by that of a value.
        """
        with name_scope(name, "pull", [keys]):
            keys = convert_to_tensor(keys)
            flat = shaping.reshape(keys, [-1])
            shard, row = self._keys.route(flat)
            rows = partitioning.dynamic_partition(row, shard, len(self.shards))
            positions = filling.range(shaping.size(flat))
            positions = partitioning.dynamic_partition(positions, shard, len(self.shards))
            parts = [self._read(index, part) for index, part in enumerate(rows)]
            values = partitioning.parallel_dynamic_stitch(positions, parts)
            shape = joining.concat([shaping.shape(keys), shaping.shape(values)[1:]], 0)
            result = shaping.reshape(values, shape)
            result.set_shape(keys.shape.concatenate(self.shards[0].shape[1:]))
            return result

    def _read(self, index: int, rows: Tensor) -> Tensor:
        shard = self.shards[index]
        with colocate_with(shard.op, ignore_existing=True):
            counted = self._counters[index].count_pull(rows)
            with control_dependencies([counted]):
                return indexing.gather(shard, rows)

    def push(self, keys: TensorLike, gradients: TensorLike, name: str | None = None) -> Node:
        """Send the gradients of keys to their servers, which apply them to the values.

        Args:
            keys: integers, of any shape; the gradients of a repeated key are all applied.
            gradients: a tensor of the shape of `keys` followed by that of a value.
            name: the name of the nodes.

        Returns:
            A node to run: end the step with `tf.train.ParameterServer.end_step` of it.
        """
        with name_scope(name, "push", [keys, gradients]):
            keys = shaping.reshape(convert_to_tensor(keys), [-1])
            gradients = convert_to_tensor(gradients, self.shards[0].dtype.base_dtype)
            value = self.shards[0].shape.as_list()[1:]
            gradients = shaping.reshape(gradients, [-1, *value])
            shard, row = self._keys.route(keys)
            rows = partitioning.dynamic_partition(row, shard, len(self.shards))
            parts = partitioning.dynamic_partition(gradients, shard, len(self.shards))
            counted = [self._count_push(index, part) for index, part in enumerate(rows)]
            slices = [IndexedSlices(part, row) for part, row in zip(parts, counted, strict=True)]
            return self._update(slices)

    def _count_push(self, index: int, rows: Tensor) -> Tensor:
        """The rows, after they have been counted on the server."""
        with colocate_with(self.shards[index].op, ignore_existing=True):
            counted = self._counters[index].count_push(rows)
            with control_dependencies([counted]):
                return basic.identity(rows)

    def _update(self, slices: Sequence[IndexedSlices]) -> Node:
        if self._at_round_end is None:
            return self._optimizer.apply_gradients(zip(slices, self.shards, strict=True))
        if not self._sums:
            self._sums = [self._sum(shard) for shard in self.shards]
            self._at_round_end(self._apply_sums)
        return basic.group(
            *(
                total.apply_indexed_slices_grad(part, local_step=_NEVER_STALE)
                for total, part in zip(self._sums, slices, strict=True)
            )
        )

    # Sequential updates

    def _sum(self, shard: Variable) -> SparseConditionalAccumulator:
        """The accumulator of the gradients that all workers push to a shard in one step."""
        with colocate_with(shard.op, ignore_existing=True):
            return SparseConditionalAccumulator(
                shard.dtype.base_dtype,
                shard.shape,
                shared_name=f"{shard.op.name}/pushed",
                reduction_type="SUM",
            )

    def _apply_sums(self) -> Node:
        """Apply the accumulated gradients."""
        sums: list[IndexedSlices] = []
        for total, shard in zip(self._sums, self.shards, strict=True):
            with colocate_with(shard.op, ignore_existing=True):
                sums.append(total.take_indexed_slices_grad(1))
        return self._optimizer.apply_gradients(zip(sums, self.shards, strict=True))


def _shard(name: str, owner: str, shape: Sequence[int], dtype: DType, initializer: Any) -> Variable:
    with device(owner):
        return get_variable(name, shape, dtype, initializer, trainable=False)
