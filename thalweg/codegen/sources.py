"""A digest of the compiler's own source, part of every cache key: other versions miss.

Comments and docstrings do not count. Each file's digest is kept on disk beside the kernels with the
file's time and size, as Python keeps bytecode: a process whose files are unchanged reads none.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from thalweg.codegen.cache import shared_disk
from thalweg.platform.caches import memoized

_PACKAGE = Path(__file__).parent.parent

#: A comment, a string, or code between them. No possessive repetition of groups: with it, `re`
#: of Python 3.11.2 matches the wrong text.
_TOKEN = re.compile(
    rb"""#[^\n]*|\"{3}(?:[^\\]|\\.)*?\"{3}|'{3}(?:[^\\]|\\.)*?'{3}"""
    rb"""|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|[^"'#]+""",
    re.DOTALL,
)


class _FileEntry(NamedTuple):
    """The digest of a file, valid while its modification time and size are these."""

    time: int
    size: int
    digest: str


@memoized(64)
def own_digest(folders: tuple[str, ...]) -> str:
    """A digest of the Python code in some folders of this package."""
    known = _kept_digests()
    before = dict(known)
    result = _digest(_PACKAGE, folders, known)
    disk = shared_disk()
    if known != before and disk is not None:
        disk.write(_table_name(), json.dumps(known, separators=(",", ":")).encode())
    return result


@cache
def _kept_digests() -> dict[str, _FileEntry]:
    disk = shared_disk()
    content = None if disk is None else disk.read(_table_name())
    try:
        return {path: _FileEntry(*known) for path, known in json.loads(content or b"{}").items()}
    except (TypeError, ValueError, AttributeError):  # not written by this code
        return {}


def _table_name() -> str:
    return blake2b(f"code digests of {_PACKAGE}".encode(), digest_size=32).hexdigest()


def code_digest(package: Path, folders: Sequence[str]) -> str:
    """A digest of the Python code in some folders of a package, without the disk cache."""
    return _digest(package, folders, {})


def _digest(package: Path, folders: Sequence[str], known: dict[str, _FileEntry]) -> str:
    """A digest of all files. `known` has digests of unchanged files, and gets those of others."""
    parts: list[str] = []
    start = len(str(package)) + 1
    for folder in folders:
        for path, time, size in sorted(_python_files(str(package / folder))):
            name = path[start:]
            found = known.get(name)
            if found is None or found.time != time or found.size != size:
                found = known[name] = _FileEntry(time, size, _file_digest(path))
            parts.append(f"{name} {found.digest}")
    return blake2b("\n".join(parts).encode(), digest_size=20).hexdigest()


def _python_files(folder: str) -> Iterator[tuple[str, int, int]]:
    """The Python files under a folder: path, modification time in nanoseconds, size."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                status = entry.stat()
                yield entry.path, status.st_mtime_ns, status.st_size
            elif entry.name != "__pycache__" and entry.is_dir():
                yield from _python_files(entry.path)


def _file_digest(path: str) -> str:
    with open(path, "rb", buffering=0) as file:
        return blake2b(code_of(file.read()), digest_size=20).hexdigest()


def code_of(source: bytes) -> bytes:
    """Python source without docstrings, comments and blank lines; newlines in strings become NUL.

    >>> code_of(b"def f(x):\\n    # twice\\n\\n    return 2 * x  # exact")
    b'def f(x):\\n    return 2 * x'
    """
    tokens: list[bytes] = _TOKEN.findall(source)
    kept: list[bytes] = []
    for before, token, after in zip([b"", *tokens], tokens, [*tokens[1:], b""], strict=False):
        if not (token.startswith(b"#") or _is_docstring(before, token, after)):
            is_string = token.startswith((b'"', b"'"))
            kept.append(token.replace(b"\n", b"\0") if is_string else token)
    return b"\n".join(filter(None, map(bytes.rstrip, b"".join(kept).split(b"\n"))))


def _is_docstring(before: bytes, string: bytes, after: bytes) -> bool:
    """Whether a token is a docstring: triple-quoted, alone on its lines, and first in the file or
    right after the colon that opens a block."""
    opens = not before or before.rstrip(b" ").endswith(b":\n")
    return opens and string.startswith(b'"""') and after.startswith(b"\n")
