"""Every block of code in README and docs runs as printed, or exists where it says that it does."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import pages

PAGES = pages.pages()
PYTHON = [
    page
    for page in PAGES
    if any(block.language == "python" and not block.source for block in pages.blocks(page))
]
PROJECT = tomllib.loads((pages.ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = set(PROJECT["optional-dependencies"])
MAIN = pages.command()
# Programs of others that the reader has, or has installed by then.
FOREIGN = {"cd", "git", "jupyter", "kubectl", "sbatch", "source", "tensorboard"}


@pytest.mark.parametrize("page", PYTHON)
def test_the_code_of_a_page_runs(page: str, tmp_path: Path) -> None:
    pages.run_page(page, tmp_path)


@pytest.mark.parametrize("page", PAGES)
def test_excerpts_stand_in_their_sources(page: str) -> None:
    excerpts = [block for block in pages.blocks(page) if block.source]
    assert [fault for block in excerpts for fault in pages.excerpt_faults(block)] == []


@pytest.mark.parametrize("page", PAGES)
def test_diffs_are_of_lines_that_stand_in_their_files(page: str) -> None:
    shown = [block for block in pages.blocks(page) if block.language == "diff"]
    assert [fault for block in shown for fault in diff_faults(block)] == []


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_exist(page: str) -> None:
    shown = [block for block in pages.blocks(page) if block.language == "sh"]
    lines = [(block, line) for block in shown for line in block.code.splitlines()]
    assert [f"{b.place}: {line}" for b, line in lines if not exists(line, page)] == []


@pytest.mark.parametrize("page", PAGES)
def test_the_files_that_a_page_names_exist(page: str) -> None:
    named = re.findall(r"`([\w/]+/\w+\.py)`", (pages.ROOT / page).read_text())
    places = (pages.ROOT, pages.ROOT / "thalweg")
    assert [file for file in named if not any((place / file).exists() for place in places)] == []


def diff_faults(block: pages.Block) -> Iterator[str]:
    """The lines that a diff keeps or removes, and the file of ours that it names does not have."""
    known: list[str] | None = None
    for line in block.code.splitlines():
        if file := re.match(r" # ([\w/]+\.py)", line):
            known = (pages.ROOT / file[1]).read_text().splitlines()
        elif known is not None and line[1:] and line[0] in " -" and line[1:] not in known:
            yield f"{block.place}: no line {line[1:]!r}"


def exists(line: str, page: str) -> bool:
    """Whether a line of a shell block calls something that is there."""
    words = [word for word in shlex.split(line, comments=True) if not re.match(r"^\w+=", word)]
    match words:
        case []:
            return True
        case ["make", *targets]:
            return makefile_has(targets)
        case [_, "-m", "pip" | "venv", *rest] | ["pip", *rest]:
            named = ",".join(re.findall(r"\[(.*?)\]", " ".join(rest)))
            return set(re.findall(r"\w+", named)) <= EXTRAS
        case [_, "-m", "thalweg", *rest] | ["thalweg", *rest]:
            return command_exists(rest)
        case ["python", "-c", code, *_]:
            return bool(compile(code, page, "exec"))
        case ["python" | "python3", file, *_]:
            return (pages.ROOT / file).exists() or f"`{file}`" in (pages.ROOT / page).read_text()
        case [program, *_]:
            return program in FOREIGN


def makefile_has(targets: list[str]) -> bool:
    makefile = (pages.ROOT / "Makefile").read_text()
    return all(f"\n{target}:" in makefile for target in targets)


def test_targets_that_are_declared_or_written_about_exist() -> None:
    makefile = (pages.ROOT / "Makefile").read_text()
    declared = re.search(r"^\.PHONY:(.*)$", makefile, re.MULTILINE)
    assert declared is not None
    texts = [
        page.read_text() for page in [*pages.ROOT.glob("*.md"), *pages.ROOT.glob("docs/**/*.md")]
    ]
    written = {name for text in texts for name in re.findall(r"`make ([a-z][a-z-]*)", text)}
    assert len(written) > 10
    missing = [t for t in {*declared[1].split(), *written} if not makefile_has([t])]
    assert not missing


def command_exists(words: list[str]) -> bool:
    """Whether the command line knows a command: its help is what asks least of it."""
    command = [word for word in words if not word.startswith("-")][:1]
    try:
        MAIN([*command, "--help"] if command else words)
    except SystemExit as end:
        return end.code == 0
    return True


def test_the_figures_in_the_readme_are_those_of_the_tables() -> None:
    readme = (pages.ROOT / "README.md").read_text()
    names = (pages.ROOT / "docs/names.md").read_text()
    conformance = (pages.ROOT / "docs/conformance.md").read_text()
    listed, present = re.search(r"Of (\d+) names .*? (\d+) are here", names).groups()
    passed = re.search(r"passed \((\d+)", conformance)[1]
    assert f"Of the {listed} names" in readme
    assert f"{present} are" in readme
    assert f"\n{passed}% pass" in readme


def test_pictures_are_small_and_shown() -> None:
    pictures = sorted(pages.IMAGES.iterdir())
    assert pictures
    assert [p.name for p in pictures if p.stat().st_size > 150_000] == []
    text = "".join((pages.ROOT / page).read_text() for page in PAGES)
    assert [p.name for p in pictures if p.name not in text] == []
