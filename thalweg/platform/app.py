"""The entry point of a program: parses the flags, calls `main` and exits with its result."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from thalweg.platform.flags import FLAGS, Error
from thalweg.public import public


@public("app.run")
def run(
    main: Callable[[list[str]], Any] | None = None, argv: Sequence[str] | None = None
) -> NoReturn:
    """Parse the flags of the command line, run `main` with the other arguments, and exit.

    Args:
        main: a function of the remaining arguments; by default `main` of the program's module.
        argv: the command line, program first; by default `sys.argv`.

    Raises:
        SystemExit: always; the status is what `main` returned.

    Example:
        >>> try:
        ...     tf.app.run(lambda argv: print(argv[1:]), ["program", "input.txt"])
        ... except SystemExit as end:
        ...     print("status", end.code)
        ['input.txt']
        status None
    """
    arguments = list(sys.argv if argv is None else argv)
    rest = _parse(arguments)
    chosen = main or sys.modules["__main__"].main
    sys.exit(chosen(rest))


def _parse(arguments: list[str]) -> list[str]:
    try:
        return FLAGS(arguments, known_only=True)
    except Error as error:
        print(f"FATAL Flags parsing error:\n  {error}", file=sys.stderr)
        print("Pass --help to see the flags of this program.", file=sys.stderr)
        sys.exit(1)
