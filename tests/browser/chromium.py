"""Chromium without a window, and an explain page in it as a reader uses it: by mouse and keys."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select

PROGRAMS = Path(__file__).with_name("programs")
SIZE = 1440, 860
_FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --hide-scrollbars
    --disable-background-networking --disable-component-update --disable-sync"""
_FRAME = "requestAnimationFrame(() => requestAnimationFrame(arguments[arguments.length - 1]))"


def explained(program: str, *arguments: str, out: Path) -> Path:
    """The page that `thalweg explain` writes about one of the programs."""
    script = PROGRAMS / f"{program}.py"
    code = "import sys; from thalweg.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "explain", "--out", str(out), str(script), *arguments]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return out


@contextmanager
def browser() -> Iterator[webdriver.Chrome]:
    """A Chromium with an empty profile."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        raise RuntimeError("Chromium is needed: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in [*_FLAGS.split(), f"--user-data-dir={profile}"]:
            options.add_argument(flag)
        chrome = webdriver.Chrome(options=options, service=Service(driver))
        chrome.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": SIZE[0], "height": SIZE[1], "deviceScaleFactor": 1, "mobile": False},
        )
        try:
            yield chrome
        finally:
            chrome.quit()


class ExplainPage:
    """An explain page that is open in a browser."""

    def __init__(self, chrome: webdriver.Chrome, file: Path) -> None:
        self.chrome = chrome
        chrome.get(file.as_uri())
        self.settle()

    def settle(self) -> None:
        """Wait until what was asked for is drawn."""
        self.chrome.execute_async_script(_FRAME)

    def script(self, code: str, *arguments: Any) -> Any:
        """What some JavaScript returns."""
        return self.chrome.execute_script(code, *arguments)

    def errors(self) -> list[str]:
        """What the console has been told since it was last asked."""
        return [entry["message"] for entry in self.chrome.get_log("browser")]

    def element(self, selector: str) -> WebElement:
        """The first element of a CSS selector."""
        return self.chrome.find_element(By.CSS_SELECTOR, selector)

    def elements(self, selector: str) -> list[WebElement]:
        """All elements of a CSS selector."""
        return self.chrome.find_elements(By.CSS_SELECTOR, selector)

    def click(self, selector: str) -> None:
        """A click on an element."""
        self.element(selector).click()
        self.settle()

    def boxes(self) -> dict[str, str]:
        """Nodes and closed scopes that are drawn, and the colour of each."""
        found = self.script(
            "return [...document.querySelectorAll('.node')].map((each) => "
            "[each.dataset.key, each.querySelector('.box').getAttribute('fill')])"
        )
        return dict(found)

    def scopes(self) -> list[str]:
        """The scopes that are drawn open."""
        return self.script(
            "return [...document.querySelectorAll('.scope')].map((each) => each.dataset.key)"
        )

    def place(self, key: str) -> dict[str, float]:
        """Where a box is on the screen."""
        return self.script(
            "return document.querySelector(`[data-key='${arguments[0]}'] .box`)"
            ".getBoundingClientRect().toJSON()",
            key,
        )

    def marked(self, kind: str) -> set[str]:
        """The boxes with a mark: new, gone, chosen, kin (of a kernel)."""
        found = self.elements(f".node.{kind}")
        return {each.get_attribute("data-key") or "" for each in found}

    def press(self, key: str) -> None:
        """A click on a box, or on the heading of an open scope."""
        at = self.place(key)
        self._mouse(at["x"] + at["width"] / 2, at["y"] + 8).click().perform()
        self.settle()

    def wheel(self, x: float, y: float, amount: int) -> None:
        """The mouse wheel at a point."""
        event = {"type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": amount}
        self.chrome.execute_cdp_cmd("Input.dispatchMouseEvent", event)
        self.settle()

    def drag(self, x: float, y: float, right: int, down: int) -> None:
        """Press the mouse at a point, move it, and let it go."""
        mouse = self._mouse(x, y).click_and_hold()
        mouse.move_by_offset(right // 2, down // 2).move_by_offset(right // 2, down // 2)
        mouse.release().perform()
        self.settle()

    def _mouse(self, x: float, y: float) -> ActionChains:
        chain = ActionChains(self.chrome, duration=0)
        chain.w3c_actions.pointer_action.move_to_location(int(x), int(y))
        return chain

    def colour(self, by: str) -> None:
        """Choose what colours stand for."""
        Select(self.element("#colour")).select_by_value(by)
        self.settle()

    def stage(self, name: str) -> None:
        """Show the graph after the first of the passes with this name, or as it is written."""
        buttons = self.elements("button.stage")
        next(button for button in buttons if button.text.startswith(name)).click()
        self.settle()

    def find(self, text: str) -> None:
        """Type into the search field."""
        field = self.element("#search")
        field.clear()
        field.send_keys(text, Keys.ENTER)
        self.settle()

    def rule(self, name: str) -> None:
        """Open the passes' rules and click on one."""
        self.script("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        rules = self.elements("a.rule")
        next(each for each in rules if each.text == name).click()
        self.settle()
