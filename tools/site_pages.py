"""What the site has besides docs/: a hook of mkdocs.

Pages at the root of the repository, those that `make docs` generated, and notebooks join the site.
Links are written as paths in the repository, so that they work wherever the sources are read; here
those to pages become links of the site, and those to other files plain text. An entry of the
navigation that ends in a slash stands for all pages of that folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import notebook_page
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
# Pages outside of docs/: where each lies in the repository, and in the site.
MOVED = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/RESULTS.md": "results.md",
    "benchmarks/ROOFLINE.md": "roofline.md",
}
# Folders of pages that are generated before the site is built; one that is missing has no pages.
GENERATED = {"build/reference": "reference"}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_FETCHED = re.compile(r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//|<link[^>]+stylesheet[^>]+//')


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of folders into the navigation."""
    places = _places()
    config.nav = [entry for item in config.nav or [] for entry in _expanded(item, places)]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add notebooks and the pages that lie outside of docs/."""
    for source, place in _places().items():
        if source.endswith(".ipynb"):
            text = notebook_page.page((ROOT / source).read_text())
            files.append(File.generated(config, place, content=text))
        elif not source.startswith("docs/"):
            files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn paths of the repository into links of the site."""
    places = _places()
    source = {place: source for source, place in places.items()}[page.file.src_uri]
    places["README.md"] = "index.md"

    def link(found: re.Match[str]) -> str:
        mark, text, target = found.groups()
        path, hash_, anchor = target.partition("#")
        if mark or not path or ":" in path:
            return found[0]
        aim = os.path.normpath(PurePosixPath(source).parent / path)
        if aim in places:
            near = os.path.relpath(places[aim], PurePosixPath(page.file.src_uri).parent)
            return f"[{text}]({near}{hash_}{anchor})"
        return text if (ROOT / aim).exists() else found[0]

    return _outside_fences(markdown, lambda text: _LINK.sub(link, text))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that would fetch something from elsewhere when it is read."""
    if found := _FETCHED.search(output):
        raise PluginError(f"{page.file.src_uri} fetches something from elsewhere: {found[0]}")
    return output


def _places() -> dict[str, str]:
    """Repository path -> path in the site, of every page."""
    pages = {f"docs/{path}": f"{path.rsplit('.', 1)[0]}.md" for path in _pages(ROOT / "docs")}
    moved = {source: place for source, place in MOVED.items() if (ROOT / source).exists()}
    generated = {
        f"{folder}/{path}": f"{place}/{path}"
        for folder, place in GENERATED.items()
        for path in _pages(ROOT / folder)
    }
    return pages | moved | generated


def _pages(folder: Path) -> Iterator[str]:
    """The pages and notebooks under a folder, the index of each folder first."""
    paths = (path.relative_to(folder) for path in folder.rglob("*"))
    found = (path for path in paths if path.suffix in (".md", ".ipynb"))
    yield from map(
        str, sorted(found, key=lambda path: (path.parent, path.stem != "index", path.stem))
    )


def _expanded(item: Any, places: dict[str, str]) -> Iterator[Any]:
    """An entry of the navigation, with the pages of a folder where one is named."""
    if isinstance(item, str):
        yield item
        return
    ((title, content),) = item.items()
    if isinstance(content, list):
        yield {title: [entry for part in content for entry in _expanded(part, places)]}
    elif not content.endswith("/"):
        yield item
    elif pages := [place for place in places.values() if place.startswith(content)]:
        yield {title: pages}


def _outside_fences(markdown: str, change: Any) -> str:
    """The text with everything but its fenced code changed."""
    parts = re.split(r"(^ *```.*?^ *```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if index % 2 else change(part) for index, part in enumerate(parts))
