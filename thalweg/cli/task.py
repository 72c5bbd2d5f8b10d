"""`thalweg task`: serve as one task of a cluster until somebody ends it."""

from __future__ import annotations

import argparse
import json
import os
import signal
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any, cast

from thalweg.cli.arguments import Subparsers, subcommand
from thalweg.cli.problem import Problem, named
from thalweg.cluster.server import Server
from thalweg.cluster.spec import ClusterSpec
from thalweg.cluster.transport.security import Security

_ABOUT = """\
Serve as one task of a cluster, for sessions and other tasks, until Ctrl-C or SIGTERM. The
file says where all tasks are: {"ps": ["host:port"], "worker": ["host:port", "host:port"]},
alone or as the "cluster" of an object such as TF_CONFIG has.

Only processes with the cluster's key may connect. On one machine those of a user share one;
on several, all need the same, by --key or by THALWEG_CLUSTER_KEY, a key or a file with it."""

_EXAMPLES = """\
examples:
  thalweg task --cluster cluster.json --job ps --index 0
  thalweg task --cluster cluster.json --job worker --index 0
  python -c "import thalweg as tf; print(tf.cluster.new_key())" > key
  thalweg task --cluster cluster.json --job ps --index 0 --key key
  then, in a program:  tf.Session("thalweg://host:port")    of any of the tasks"""


class _Ended(BaseException):
    """A signal asks the task to end."""


def add(commands: Subparsers) -> None:
    """Add the command to the command line."""
    command = subcommand(commands, "task", "serve as a task of a cluster", _ABOUT, _EXAMPLES)
    command.add_argument("--cluster", required=True, metavar="FILE", help="where all tasks are")
    command.add_argument("--job", required=True, help="the job that this task belongs to")
    command.add_argument("--index", type=int, default=0, help="its index in the job (0)")
    command.add_argument("--key", metavar="FILE", help="a file with the key of the cluster")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.key is not None:
        _use_key(args.key)
    with suppress(_Ended), _ended_by(signal.SIGTERM):
        server = _server(args.cluster, args.job, args.index)
        try:
            address = server.target.rpartition("/")[2]
            print(f"/job:{args.job}/task:{args.index} listens at {address}", flush=True)
            server.join()
        finally:
            server.stop()
    return 0


def _use_key(path: str) -> None:
    """Have this process use the key in a file."""
    with named(path), open(path, encoding="ascii") as file:
        os.environ["THALWEG_CLUSTER_KEY"] = Security(file.read().strip()).key or "none"


def _server(path: str, job: str, index: int) -> Server:
    with named(path):
        cluster = read_cluster(path)
        cluster.task_address(job, index)  # raises where there is no such task
    return Server(cluster, job, index)


def read_cluster(path: str) -> ClusterSpec:
    """The tasks that a file lists."""
    with open(path, encoding="utf-8") as file:
        content: Any = json.load(file)
    if isinstance(content, dict) and isinstance(content.get("cluster"), dict):  # pyright: ignore[reportUnknownMemberType] - of any JSON object
        content = cast("dict[str, Any]", content)["cluster"]
    try:
        return ClusterSpec(cast("Any", content))
    except (TypeError, ValueError):
        raise Problem(
            f'{path}: not a cluster: expected an object such as {{"ps": ["host:port"], '
            '"worker": ["host:port"]}'
        ) from None


@contextmanager
def _ended_by(number: signal.Signals) -> Generator[None]:
    """Raise in this thread, the main one, when a signal comes."""

    def end(*_: Any) -> None:
        raise _Ended

    before = signal.signal(number, end)
    try:
        yield
    finally:
        signal.signal(number, before)
