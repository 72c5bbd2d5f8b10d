"""`thalweg export`: a checkpoint rewritten as TensorFlow's own."""

from __future__ import annotations

import argparse

from thalweg.cli.arguments import Subparsers, subcommand
from thalweg.cli.problem import named
from thalweg.saved.checkpoints import export_tensorflow_checkpoint

_ABOUT = """\
Write a checkpoint as TensorFlow's own of version 2, for TensorFlow and its tools to read."""

_EXAMPLES = """\
examples:
  thalweg export run/model-1000 tf/model-1000    one checkpoint
  thalweg export run/ tf/model                   the latest of a folder"""


def add(commands: Subparsers) -> None:
    """Add the command to the command line."""
    command = subcommand(
        commands, "export", "write a checkpoint as TensorFlow's", _ABOUT, _EXAMPLES
    )
    command.add_argument("path", help="a checkpoint's prefix, or a folder of checkpoints")
    command.add_argument("target", help="the prefix of the files to write")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    with named(args.path):
        written = export_tensorflow_checkpoint(args.path.removesuffix(".index"), args.target)
    print(f"{args.target}: {len(written)} tensors for TensorFlow")
    return 0
