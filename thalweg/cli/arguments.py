"""What the subcommands' arguments have in common."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the class takes a parameter for type checkers only
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]  # pyright: ignore[reportPrivateUsage] - argparse has no public name for it
else:
    Subparsers = argparse._SubParsersAction


def subcommand(
    commands: Subparsers, name: str, short: str, about: str, examples: str
) -> argparse.ArgumentParser:
    """A new subcommand with its help texts."""
    return commands.add_parser(
        name,
        help=short,
        description=about,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_json(command: argparse.ArgumentParser) -> None:
    """Add the flag `--json`."""
    command.add_argument("--json", action="store_true", help="print JSON, for scripts")
