"""The command `thalweg`: parses the arguments, runs a subcommand, and says in one line what failed.

Comes in: the arguments of the command line. Goes out: an exit status: 0 if all is well, 1 if not,
2 for arguments that make no sense, 130 after Ctrl-C. Whatever is wrong with a file is one line on
standard error that names it; `THALWEG_FULL_TRACEBACK=1` shows where in the program it was found.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from thalweg.cli import cache, doctor, explain, export, inspect, launch, migrate, run, task
from thalweg.cli.problem import describe
from thalweg.cli.report import printable
from thalweg.version import __version__

_COMMANDS = (run, explain, inspect, export, migrate, launch, task, cache, doctor)
_MAX_MESSAGE = 400
_USAGE, _INTERRUPTED = 2, 130

_ABOUT = """\
Run TensorFlow programs as they are, alone or distributed, see what they lack here, look into
files of models and data, and find out how this installation does."""

_EXAMPLES = """\
examples:
  thalweg run train.py --steps 100               a program that imports tensorflow, as it is
  thalweg explain train.py                       what becomes of its steps, as a page
  thalweg inspect model.ckpt                     what is in a checkpoint
  thalweg inspect model.ckpt --tensor dense/kernel
  thalweg inspect logs/                          the scalars of a run
  thalweg migrate --check train.py lib/          which TensorFlow names exist here
  thalweg launch --ps 1 --workers 2 train.py     a distributed program, all its tasks
  thalweg doctor                                 processor, caches, optional packages

`thalweg COMMAND --help` tells more about each."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = _parser()
    args = parser.parse_args(arguments)
    if args.command is None:
        parser.print_help()
        return _USAGE
    try:
        _tolerate_any_text()
        status = args.run(args)
        sys.stdout.flush()  # here, where a closed pipe can still be caught
    except BrokenPipeError:  # the reader has seen enough
        _discard_output()
        return 0
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as error:  # of a file nobody can foresee: one line for all that can go wrong
        if os.environ.get("THALWEG_FULL_TRACEBACK", "0") not in ("", "0"):
            raise
        print(f"thalweg {args.command}: {_sentence(error)}", file=sys.stderr)
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="thalweg",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"thalweg {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command in _COMMANDS:
        command.add(commands)
    return parser


def _sentence(error: Exception) -> str:
    """An error in one line."""
    text = describe(error)
    line = " ".join(part.strip() for part in text.splitlines() if part.strip())
    line = printable(line or type(error).__name__)
    return line if len(line) <= _MAX_MESSAGE else f"{line[: _MAX_MESSAGE - 1]}…"


def _tolerate_any_text() -> None:
    """Print names that the terminal has no letters for with escapes, rather than not at all."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Python writes out what it holds when it ends, which must not fail again."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
