"""A notebook as a page: its text, its code, and what the cells printed and drew.

In comes the JSON of a notebook, out comes markdown; pictures are part of it, as data.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def page(notebook: str) -> str:
    """The markdown of a notebook."""
    cells = json.loads(notebook)["cells"]
    return "\n\n".join(part for cell in cells for part in _cell(cell)) + "\n"


def _cell(cell: dict[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
    elif cell["cell_type"] == "code" and source.strip():
        yield _fenced(source, "python")
        for output in cell["outputs"]:
            yield from _output(output)


def _output(output: dict[str, Any]) -> Iterator[str]:
    """What a cell printed, or the best form of what it showed or raised."""
    data = output.get("data", {})
    if output["output_type"] == "stream":
        yield _fenced("".join(output["text"]), "output")
    elif output["output_type"] == "error":
        yield _fenced(f"{output['ename']}: {output['evalue']}", "output")
    elif "image/png" in data:
        yield f"![](data:image/png;base64,{''.join(data['image/png']).strip()})"
    elif "text/plain" in data:
        yield _fenced("".join(data["text/plain"]), "output")


def _fenced(text: str, language: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"
