"""`thalweg run`: a program that imports `tensorflow`, run on Thalweg as it is."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, TracebackType

from thalweg import alias
from thalweg.alias import children, legacy, old_arrays
from thalweg.cli.arguments import Subparsers, subcommand
from thalweg.cli.problem import Problem

_ABOUT = """\
Run a Python program in which `import tensorflow`, with all that is below it, means Thalweg.
The program is not changed. Names that left Python and NumPy since TensorFlow 1 (np.float,
collections.Mapping, time.clock, ...) are there again while it runs, arrays have `tostring` and
take lists of slices as indices. So it is in the Python processes that it starts, unless they
are given another environment (THALWEG_RUN, PYTHONPATH) or told to ignore it (python -E, -I, -S).

A TensorFlow that is installed is not replaced without --replace."""

_EXAMPLES = """\
examples:
  thalweg run train.py --learning_rate=0.1
  thalweg run --replace train.py                 although TensorFlow is installed
  thalweg run --tensorflow 0.12 train.py         a program from before TensorFlow 1.0
  thalweg launch --workers 2 --flags thalweg run mnist_replica.py"""


def add(commands: Subparsers) -> None:
    """Add the command to the command line."""
    command = subcommand(
        commands, "run", "run a program that imports tensorflow, as it is", _ABOUT, _EXAMPLES
    )
    command.add_argument(
        "--replace", action="store_true", help="stand in for a TensorFlow that is installed"
    )
    command.add_argument(
        "--tensorflow",
        choices=alias.VERSIONS,
        default=alias.VERSIONS[-1],
        metavar="VERSION",
        help="whose meaning of names holds where versions differ: 0.12 or 1.15 (default)",
    )
    command.add_argument("script", help="a Python file")
    command.add_argument("arguments", nargs=argparse.REMAINDER, help="its own arguments")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    script = Path(args.script)
    prepare(script, args.replace, args.tensorflow)
    return run_program(script, args.arguments)


def prepare(script: Path, replace: bool, version: str = alias.VERSIONS[-1]) -> None:
    """Have `tensorflow` mean Thalweg, and names that left Python and NumPy be there.

    So it is in the processes that the program starts.
    """
    try:
        alias.install(replace=replace, version=version)
    except ImportError as error:
        raise Problem(str(error)) from error
    legacy.restore()
    children.inherit(script.resolve().parent, version, replace=replace)


def run_program(script: Path, arguments: Sequence[str]) -> int:
    """Run a file as the main program; what it raises is shown as Python shows it."""
    try:
        source = script.read_bytes()
    except OSError as error:
        raise Problem(f"{script}: {error.strerror}") from error
    main = ModuleType("__main__")
    main.__file__ = str(script)
    sys.modules["__main__"] = main
    sys.argv = [str(script), *arguments]
    folder = script.resolve().parent
    sys.path.insert(0, str(folder))
    old_arrays.install(folder)
    try:
        exec(old_arrays.compiled(source, str(script)), main.__dict__)
    except Exception as error:
        sys.excepthook(type(error), error, _own_frames(error.__traceback__))
        return 1
    return 0


def _own_frames(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frame that runs the program."""
    return trace.tb_next if trace is not None else None
