"""`thalweg inspect`: what is in a file of a model or of data."""

from __future__ import annotations

import argparse

from thalweg.cli.arguments import Subparsers, add_json, subcommand
from thalweg.cli.kinds import recognise
from thalweg.cli.problem import Problem, named
from thalweg.cli.report import show
from thalweg.cli.tensors import print_tensor, save_tensor

_ABOUT = """\
Show what is in a file of a model or of data. The kind is found by looking into it:

  checkpoints     Thalweg's and TensorFlow's (version 2), by prefix, file or folder
  safetensors     files of tensors
  saved models    of TensorFlow 1 and 2: signatures, variables, objects
  graphs          GraphDef and MetaGraphDef, binary or text
  records         TFRecord files, plain or compressed, and the features of Examples
  events          what TensorBoard reads: a file, or a folder of a run"""

_EXAMPLES = """\
examples:
  thalweg inspect run/                           the checkpoints of a folder
  thalweg inspect run/model-1000 --verify        read every byte, check every checksum
  thalweg inspect run/model-1000 --tensor dense/kernel --output kernel.npy
  thalweg inspect export/1                       a saved model
  thalweg inspect train.tfrecord --tensor image --record 7
  thalweg inspect logs/ --tensor loss            the (step, value) pairs of a scalar
  thalweg inspect model.safetensors --json | jq '.tensors[].name'"""


def add(commands: Subparsers) -> None:
    """Add the command to the command line."""
    command = subcommand(commands, "inspect", "show what is in a file", _ABOUT, _EXAMPLES)
    command.add_argument("path", help="a file, a folder, or the prefix of a checkpoint")
    command.add_argument(
        "--tensor",
        metavar="NAME",
        help="show one tensor: a variable, a constant, a feature of an Example or a summary's tag",
    )
    command.add_argument(
        "--record",
        metavar="N",
        type=_count,
        help="which record, or which of the values of a tag, counted from 0",
    )
    command.add_argument("--output", metavar="FILE.npy", help="save the tensor instead")
    command.add_argument(
        "--verify", action="store_true", help="read all tensors of a checkpoint, check their sums"
    )
    add_json(command)
    command.set_defaults(run=run)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.tensor is not None:
        return _one_tensor(args)
    if args.output is not None or args.record is not None:
        raise Problem(f"{args.path}: --output and --record say more about a --tensor NAME")
    with named(args.path):
        report = recognise(args.path).report(args.verify)
    show(report, args.json)
    return 0


def _one_tensor(args: argparse.Namespace) -> int:
    with named(args.path):
        tensor = recognise(args.path).tensor(args.tensor, args.record)
    if args.output is None:
        print_tensor(args.path, tensor, args.json)
        return 0
    save_tensor(args.output, tensor)
    print(f"{args.output}: {tensor.dtype}{list(tensor.array.shape)}")
    return 0
