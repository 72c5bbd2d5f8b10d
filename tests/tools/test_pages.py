"""The tool that runs the code of pages finds what is wrong in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import notebook_page, pages


def run(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "ROOT", folder)
    (folder / "page.md").write_text(text)
    pages.run_page("page.md", folder)


@pytest.mark.parametrize(
    "text",
    [
        "```python\nprint(1 + 1)\n```\n\n```output\n2\n```",
        "```python\nprint(1 + 1)  # 2\n```",
        "```python\nx = 1\n```\ntext\n\n```python\nprint(f'{x} ms')\n```\n\n```output\n… ms\n```",
        "```python\n1 / 0\n```\n\n```output\nZeroDivisionError: …\n```",
        "!!! note\n    ```python\n    if True:\n        print(1)  # 1\n    ```",
        "<!-- from x.py -->\n```python\nnot_run()\n```",
        "```text\nnot run\n```",
    ],
)
def test_a_true_page_runs(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(text, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("```python\nprint(1 + 1)\n```\n\n```output\n3\n```", r"page.md:2 says\n3"),
        ("```python\nprint(1 + 1)  # 3\n```", "promises '3'"),
        ("```python\n1\n```\n\n```output\nValueError: bad\n```", "no error came"),
        ("```python\n1 / 0\n```\n\n```output\nValueError: bad\n```", "this came:\nZeroDivision"),
        ("```python\n1\n```\ntext\n```output\n1\n```", "follows no code"),
    ],
)
def test_a_false_page_fails(
    text: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(pages.Mismatch, match=fault):
        run(text, tmp_path, monkeypatch)


def test_an_excerpt_is_held_to_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    (tmp_path / "x.py").write_text("def f():\n    return g(1, 2)\n")
    (tmp_path / "page.md").write_text(
        "<!-- from x.py -->\n\n```python\nreturn g(...)  # why\nreturn h()\n```"
    )
    (block,) = pages.blocks("page.md")
    assert list(pages.excerpt_faults(block)) == ["page.md:4: x.py has no line 'return h()'"]


def test_a_notebook_becomes_a_page() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "Text."]},
        {
            "cell_type": "code",
            "source": ["print(1)\n", "2"],
            "outputs": [
                {"output_type": "stream", "name": "stdout", "text": ["1\n"]},
                {"output_type": "execute_result", "data": {"text/plain": ["2"]}},
                {"output_type": "display_data", "data": {"image/png": "aGk=\n", "text/plain": ""}},
                {"output_type": "error", "ename": "ValueError", "evalue": "bad", "traceback": []},
            ],
        },
        {"cell_type": "code", "source": [], "outputs": []},
    ]
    assert notebook_page.page(json.dumps({"cells": cells})) == (
        "# Title\nText.\n\n```python\nprint(1)\n2\n```\n\n```output\n1\n```\n\n"
        "```output\n2\n```\n\n![](data:image/png;base64,aGk=)\n\n"
        "```output\nValueError: bad\n```\n"
    )
