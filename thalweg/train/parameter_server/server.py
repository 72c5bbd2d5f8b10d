"""`ParameterServer`: tables on devices, with a chosen consistency between workers.

A hash ring of the devices assigns keys to them, in ranges. Consistency is one number, the steps
that a worker may be ahead of the slowest: 0 is sequential, None eventual.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thalweg.cluster.hash_ring import HashRing
from thalweg.graph.dtypes import as_dtype
from thalweg.graph.node import Node
from thalweg.ops.core import basic
from thalweg.platform.described import described
from thalweg.public import public
from thalweg.train.hooks.session_run_hook import SessionRunHook
from thalweg.train.optimizers.gradient_descent import GradientDescentOptimizer
from thalweg.train.optimizers.optimizer import Optimizer
from thalweg.train.parameter_server.key_ranges import KeyRanges
from thalweg.train.parameter_server.load import LoadCounters, ServerLoad, load_text
from thalweg.train.parameter_server.table import AtRoundEnd, ParameterTable
from thalweg.train.replicas.bounded_delay import BoundedDelay
from thalweg.variables.initializers import Zeros
from thalweg.variables.scope import AUTO_REUSE, variable_scope


@public("train.ParameterServer")
class ParameterServer:
    """Tables of values by key on several devices, which workers pull from and push to.

    Every worker builds the same one, with its own index.

    Args:
        devices: the devices of the servers, such as "/job:ps/task:0".
        num_workers: the number of workers.
        worker_index: the index of this one.
        max_delay: the number of steps that a worker may be ahead of the slowest. 0 is sequential
            consistency: the pulls of a step see the pushes of all earlier steps and no other. None
            is eventual consistency: pushes are applied on arrival, and no worker waits. Otherwise
            pushes are applied on arrival, and a worker that is too far ahead waits.
        virtual_nodes: the number of points of each server on the hash ring.
        name: the name of the variables.

    Example:
        >>> servers = tf.train.ParameterServer(["/cpu:0"])
        >>> table = servers.table("weights", num_keys=1000, value_shape=[2])
        >>> rows = table.pull([3, 700])
        >>> loss = tf.reduce_sum(tf.square(rows - 1.0))
        >>> push = table.push([3, 700], tf.gradients(loss, rows)[0])
        >>> step = servers.end_step(push)
        >>> sess.run(tf.global_variables_initializer())
        >>> sess.run(step)
        >>> sess.run(rows)
        array([[0.02, 0.02],
               [0.02, 0.02]], dtype=float32)
    """

    def __init__(
        self,
        devices: Sequence[str],
        num_workers: int = 1,
        worker_index: int = 0,
        max_delay: int | None = None,
        virtual_nodes: int = 128,
        name: str = "parameter_server",
    ) -> None:
        self._ring = HashRing(list(devices), virtual_nodes)
        self._name = name
        self._tables: list[ParameterTable] = []
        self._delay = (
            None
            if max_delay is None
            else BoundedDelay(max_delay, num_workers, worker_index, devices[0], f"{name}_delay")
        )
        with variable_scope(name, reuse=AUTO_REUSE):
            self._counters = {
                member: LoadCounters(number, member)
                for number, member in enumerate(self._ring.members)
            }

    def __repr__(self) -> str:
        tables = [table.name for table in self._tables]
        return described(self, self._name, servers=len(self._counters), tables=tables)

    def table(
        self,
        name: str,
        num_keys: int,
        value_shape: Sequence[int] = (),
        dtype: Any = "float32",
        initializer: Any = None,
        optimizer: Optimizer | None = None,
    ) -> ParameterTable:
        """A table of values by key.

        Args:
            name: the name of its variables.
            num_keys: the number of keys, which are the integers below it.
            value_shape: the shape of one value.
            dtype: the dtype of values.
            initializer: an initializer, as for `tf.get_variable`; zeros if None.
            optimizer: applies the pushed gradients to the values;
                `tf.train.GradientDescentOptimizer(0.01)` if None.

        Returns:
            A `tf.train.ParameterTable`.
        """
        with variable_scope(self._name, reuse=AUTO_REUSE):
            table = ParameterTable(
                name,
                KeyRanges(self._ring, num_keys),
                list(value_shape),
                as_dtype(dtype),
                Zeros() if initializer is None else initializer,
                optimizer or GradientDescentOptimizer(0.01),
                self._counters,
                self._at_round_end,
            )
        self._tables.append(table)
        return table

    @property
    def _at_round_end(self) -> AtRoundEnd | None:
        """For sequential consistency, the function that defers updates to the end of all workers'
        steps; else None."""
        delay = self._delay
        return delay.at_round_end if delay is not None and delay.max_delay == 0 else None

    def end_step(self, *pushes: Any) -> Node:
        """A node that ends a worker's step: pushes, then waits if the worker is too far ahead.

        Args:
            *pushes: the push nodes of the step.

        Returns:
            A node to run.
        """
        pushed = basic.group(*pushes)
        return pushed if self._delay is None else self._delay.after(pushed)

    def make_session_run_hook(self, is_chief: bool) -> SessionRunHook:
        """A hook that a worker needs unless consistency is eventual.

        Args:
            is_chief: whether this worker runs the thread that synchronises the workers.

        Returns:
            A `tf.train.SessionRunHook` for `tf.train.MonitoredTrainingSession`.
        """
        return (
            SessionRunHook() if self._delay is None else self._delay.make_session_run_hook(is_chief)
        )

    # Load

    def load(self, session: Any) -> list[ServerLoad]:
        """The keys and bytes of each server, and the keys pulled from it and pushed to it.

        Args:
            session: a session in which the variables are initialized.

        Returns:
            (device, keys, bytes, pulled, pushed) of each server.
        """
        counts = session.run([counters.values for counters in self._counters.values()])
        return [
            ServerLoad(member, *self._held(member), int(pulled), int(pushed))
            for member, (pulled, pushed) in zip(self._counters, counts, strict=True)
        ]

    def _held(self, member: str) -> tuple[int, int]:
        """The number of keys of all tables on a server, and their bytes."""
        held = [table.held(member) for table in self._tables]
        return sum(keys for keys, _ in held), sum(size for _, size in held)

    def load_table(self, session: Any) -> str:
        """`load` as text, with each server's share.

        Args:
            session: a session in which the variables are initialized.

        Returns:
            Lines of a table.
        """
        return load_text(self.load(session))
