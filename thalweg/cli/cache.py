"""`thalweg cache`: the compiled kernels and programs that are kept on disk for later processes."""

from __future__ import annotations

import argparse
import os
import re
import stat
from typing import Any

from thalweg.cli.arguments import Subparsers, add_json, subcommand
from thalweg.cli.problem import Problem, named
from thalweg.cli.report import Report, Size, show
from thalweg.platform.amounts import size
from thalweg.platform.disk_cache import Disk, disk_of_environment

_ABOUT = """\
Thalweg keeps compiled kernels, lowered programs and measured schedules in a folder of
the user, so that the next process need not make them again. THALWEG_CACHE names another
folder, THALWEG_CACHE=0 turns it off, THALWEG_CACHE_LIMIT sets a limit for one process."""

_EXAMPLES = """\
examples:
  thalweg cache info             where it is, how large, whether it is in use
  thalweg cache clear            remove all of it; it is made again when needed
  thalweg cache limit            how much it may hold
  thalweg cache limit 2GB        have it hold less: what was not used for long goes now"""

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?", re.IGNORECASE | re.ASCII)


def add(commands: Subparsers) -> None:
    """Add the command to the command line."""
    command = subcommand(commands, "cache", "the kernels kept on disk", _ABOUT, _EXAMPLES)
    actions = command.add_subparsers(dest="action", metavar="ACTION", required=True)
    info = actions.add_parser("info", help="where the cache is and what it holds")
    add_json(info)
    info.set_defaults(run=_info)
    actions.add_parser("clear", help="remove all entries").set_defaults(run=_clear)
    limit = actions.add_parser("limit", help="show or set how much it may hold")
    limit.add_argument("size", nargs="?", type=_size, help="bytes, or 500MB, 2GB, 1GiB")
    limit.set_defaults(run=_limit)


def cache_report() -> Report:
    """Where the cache is, what it holds, and whether it is used."""
    disk = disk_of_environment()
    if disk is None:
        return Report("cache", facts={"state": "off (THALWEG_CACHE=0, or there is no home folder)"})
    used, problem = disk.usage(), disk.problem()
    facts: dict[str, Any] = {"state": _state(disk, problem)}
    facts |= _permissions(str(disk.root))
    facts |= {"entries": used.entries, "size": Size(used.bytes), "limit": Size(disk.limit)}
    return Report("cache", str(disk.root), facts)


def cache_problem() -> str | None:
    """Why the cache is not used though it should be."""
    disk = disk_of_environment()
    return None if disk is None else disk.problem()


def _state(disk: Disk, problem: str | None) -> str:
    if problem is not None:
        return f"not used: {problem}"
    return "in use" if disk.root.exists() else "not made yet"


def _permissions(path: str) -> dict[str, Any]:
    try:
        status = os.stat(path)
    except OSError:
        return {}
    owner = "you" if status.st_uid == os.geteuid() else f"user {status.st_uid}"
    return {"permissions": f"{stat.filemode(status.st_mode)}, owned by {owner}"}


def _info(args: argparse.Namespace) -> int:
    show(cache_report(), args.json)
    return 0


def _clear(_: argparse.Namespace) -> int:
    disk = _usable()
    with named(str(disk.root)):
        removed = disk.clear()
    print(f"{disk.root}: removed {removed.entries:,} entries, {size(removed.bytes)}")
    return 0


def _limit(args: argparse.Namespace) -> int:
    disk = _usable()
    if args.size is not None:
        with named(str(disk.root)):
            disk.keep_limit(args.size)
    override = " (THALWEG_CACHE_LIMIT)" if os.environ.get("THALWEG_CACHE_LIMIT") else ""
    print(f"{disk.root}: at most {size(disk.limit)}{override}")
    return 0


def _usable() -> Disk:
    """The cache, unless it is off or somebody else can have been there."""
    disk = disk_of_environment()
    if disk is None:
        raise Problem("the cache is off: THALWEG_CACHE=0, or there is no home folder")
    problem = disk.problem()
    if problem is not None:
        raise Problem(f"{disk.root}: not touched, as it is not used: {problem}")
    return disk


def _size(text: str) -> int:
    """A number of bytes: `500MB`."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 500MB or 2GiB")
    unit = (found[2] or "").lower()
    return int(float(found[1]) * (_UNITS | _BINARY)[unit])
