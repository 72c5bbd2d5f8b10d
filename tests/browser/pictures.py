"""Pictures of explain pages for the docs: `python -m tests.browser.pictures docs/images`."""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image

from tests.browser.chromium import ExplainPage, browser, explained


def main(folder: Path) -> None:
    """Take the pictures."""
    with browser() as chrome, tempfile.TemporaryDirectory() as pages:
        page = ExplainPage(chrome, explained("perceptron", out=Path(pages, "perceptron.html")))
        page.press("loss/")
        page.rule("logarithm of a softmax")
        page.script(
            "document.querySelectorAll('details').forEach((each) => {"
            " each.open = each.dataset.pass === 'stable_forms'; })"
        )
        save(page, folder / "explain_rules.png")
        page.stage("stable_forms")
        save(page, folder / "explain_after.png")
        page = ExplainPage(chrome, explained("perceptron", out=Path(pages, "perceptron.html")))
        page.colour("time")
        page.click("#slowest")
        page.click("tr.kernel")
        save(page, folder / "explain_time.png")
        page = ExplainPage(chrome, explained("lstm", "12", "2", out=Path(pages, "lstm.html")))
        page.click("#expand")
        save(page, folder / "explain_lstm.png")


def save(page: ExplainPage, file: Path) -> None:
    """A picture of the window, in 160 colours: it is text and flat boxes."""
    picture = Image.open(io.BytesIO(page.chrome.get_screenshot_as_png())).convert("RGB")
    few = picture.quantize(160, Image.Quantize.MAXCOVERAGE, kmeans=4, dither=Image.Dither.NONE)
    few.save(file, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
