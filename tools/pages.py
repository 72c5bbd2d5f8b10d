"""The code of pages: README, docs and what stands at the root, as the reader would run it.

The `python` blocks of a page run in order, in one namespace, in an empty folder. The block below
says what to expect: an `output` block is what the code printed, with `…` for any text; if it has an
error, the code must raise it. A comment behind a call of `print` is what it prints.
A comment `<!-- from FILE -->` marks an excerpt: it does not run, but its lines must stand in that
file. An `sh` block with an output is a call of `thalweg`. Other blocks are not looked at here.

    python tools/pages.py       # runs all pages, and takes over the pictures that they save
"""

from __future__ import annotations

import contextlib
import doctest
import io
import itertools
import linecache
import os
import pkgutil
import re
import shlex
import shutil
import tempfile
import tomllib
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import thalweg as tf

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
_FENCE = re.compile(
    r"^(?:<!-- from (?P<source>\S+) -->\n+)?"
    r"(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_RAISED = re.compile(r"^[\w.]*(Error|Exception|Interrupt): ", re.MULTILINE)
_PROMISE = re.compile(r"\bprint\(.*\)  # (.+)$", re.MULTILINE)


class Mismatch(AssertionError):
    """A page that does not say what happens."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; `source` is the file that an excerpt comes from."""

    page: str
    line: int
    language: str
    code: str
    source: str | None
    output: str | None

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """The pages with code that runs, as paths in the repository."""
    written = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(str(page.relative_to(ROOT)) for page in written if "```" in page.read_text())


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, `output` blocks as part of the one that they follow."""
    text = (ROOT / page).read_text()
    found = [*_FENCE.finditer(text), None]
    return [
        _block(page, text, block, _output(text, block, follower))
        for block, follower in itertools.pairwise(found)
        if block and block["language"] != "output"
    ]


def _block(page: str, text: str, found: re.Match[str], output: str | None) -> Block:
    line = text.count("\n", 0, found.start("code")) + 1
    code = _dedented(found)
    return Block(page, line, found["language"], code, found["source"], output)


def _output(text: str, block: re.Match[str], follower: re.Match[str] | None) -> str | None:
    """What stands right below a block as its output."""
    if follower is None or follower["language"] != "output":
        return None
    if text[block.end() : follower.start()].strip():
        raise Mismatch(f"an output follows no code: {follower[0]}")
    return _dedented(follower)


def _dedented(found: re.Match[str]) -> str:
    return re.sub(f"^{found['indent']}", "", found["code"], flags=re.MULTILINE)


def run_page(page: str, folder: Path) -> None:
    """Run the Python of a page in `folder`, and hold it to what the page says."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.chdir(folder), _plain_drawing():
        tf.reset_default_graph()
        try:
            for block in blocks(page):
                if block.language == "python" and not block.source:
                    _run(block, namespace)
                elif block.language == "sh" and block.output is not None:
                    _compare(block, command_output(block.code), None)
        finally:
            _end(namespace)


def _run(block: Block, namespace: dict[str, Any]) -> None:
    printed = io.StringIO()
    code = "\n" * (block.line - 1) + block.code  # so that errors name the lines of the page
    lines = code.splitlines(keepends=True)
    linecache.cache[block.page] = (len(code), None, lines, block.page)
    error = None
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            exec(compile(code, block.page, "exec"), namespace)
        except Exception as raised:
            if not _must_raise(block):
                raise
            error = "".join(traceback.format_exception_only(raised))
    _compare(block, printed.getvalue(), error)


def _must_raise(block: Block) -> bool:
    return bool(block.language == "python" and block.output and _RAISED.search(block.output))


def command_output(line: str) -> str:
    """What a call of the command `thalweg` prints."""
    name, *arguments = shlex.split(line)
    if name != "thalweg":
        raise Mismatch(f"only the output of thalweg can be checked, not that of {line}")
    printed = io.StringIO()
    shown = contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed)
    with shown[0], shown[1], contextlib.suppress(SystemExit):
        command()(arguments)
    return printed.getvalue()


def command() -> Callable[[list[str]], int]:
    """The program behind the command `thalweg`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return pkgutil.resolve_name(project["scripts"]["thalweg"])


def _compare(block: Block, printed: str, error: str | None) -> None:
    if _must_raise(block) and error is None:
        raise Mismatch(f"{block.place}: no error came, but the page shows {block.output}")
    if block.output is not None:
        got = printed + (error or "")
        if not _same(block.output, got):
            raise Mismatch(f"{block.place} says\n{block.output}\nbut this came:\n{got}")
    for promise in _PROMISE.findall(block.code):
        if " ".join(promise.split()) not in " ".join(printed.split()):
            raise Mismatch(f"{block.place} promises {promise!r}, but printed\n{printed}")


def _same(wanted: str, got: str) -> bool:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(wanted.replace("…", "..."), got, flags)


def _end(namespace: dict[str, Any]) -> None:
    """Leave the process as it was: sessions and files closed, graphs as the default mode."""
    tf.summary.FileWriterCache.clear()
    for value in list(namespace.values()):
        if isinstance(value, tf.InteractiveSession | tf.Session):
            value.close()
    if tf.executing_eagerly():
        tf.disable_eager_execution()
    tf.reset_default_graph()


@contextlib.contextmanager
def _plain_drawing() -> Iterator[None]:
    """Pictures go to files, whatever screen there is."""
    before = os.environ.get("MPLBACKEND")
    os.environ["MPLBACKEND"] = "Agg"
    yield
    os.environ.pop("MPLBACKEND")
    if before:
        os.environ["MPLBACKEND"] = before


def excerpt_faults(block: Block) -> Iterator[str]:
    """The lines of an excerpt that its source does not have."""
    lines = {line.strip() for line in (ROOT / str(block.source)).read_text().splitlines()}
    for line in block.code.splitlines():
        said = line.partition("  # ")[0].strip()
        if said and not any(known.startswith(said.removesuffix("...)")) for known in lines):
            yield f"{block.place}: {block.source} has no line {said!r}"


def main() -> None:
    """Run every page; keep the pictures that its code saves and the page shows."""
    for page in pages():
        with tempfile.TemporaryDirectory() as folder:
            run_page(page, Path(folder))
            for picture in sorted(Path(folder).glob("*.png")):
                if picture.name in (ROOT / page).read_text():
                    shutil.copy(picture, IMAGES / picture.name)
                    print(f"{page}: {picture.name}, {picture.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
