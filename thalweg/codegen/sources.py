"""A digest of the compiler's own source, part of every cache key: other versions miss.

Comments and docstrings do not count. Each folder's digest is kept on disk beside the kernels, under
the times and sizes of its files: a process whose files are unchanged reads none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

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


@memoized(64)
def own_digest(folders: tuple[str, ...]) -> str:
    """A digest of the Python code in some folders of this package."""
    return _combined(map(_folder_digest, folders))


@memoized(64)
def _folder_digest(folder: str) -> str:
    """A digest of a folder of this package, kept on disk for files of these times and sizes."""
    files = sorted(_python_files(str(_PACKAGE / folder)))
    name = blake2b(f"code digest of {files}".encode(), digest_size=32).hexdigest()
    disk = shared_disk()
    known = None if disk is None else disk.read(name)
    if known is None:
        known = code_digest(_PACKAGE, [folder]).encode()
        if disk is not None:
            disk.write(name, known)
    return known.hex()  # whatever bytes these are


def code_digest(package: Path, folders: Sequence[str]) -> str:
    """A digest of the Python code in some folders of a package, without the disk cache."""
    start = len(str(package)) + 1
    files = [sorted(_python_files(str(package / folder))) for folder in folders]
    paths = [path for each in files for path, _, _ in each]
    return _combined(f"{path[start:]} {_file_digest(path)}" for path in paths)


def _combined(digests: Iterable[str]) -> str:
    return blake2b("\n".join(digests).encode(), digest_size=20).hexdigest()


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
