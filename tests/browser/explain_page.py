"""The page of `thalweg explain` in Chromium: zoom, scopes, passes, colours, rules, kernels, memory,
of a perceptron, an LSTM, two devices, and a graph of more than 5,000 nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium import webdriver

from tests.browser.chromium import ExplainPage, browser, explained

#: Programs with their arguments, by the name of their page.
PAGES = {
    "perceptron": ("perceptron",),
    "lstm": ("lstm", "12", "2"),
    "large": ("lstm", "50", "3"),
    "devices": ("two_devices",),
}
Open = Callable[[str], ExplainPage]


@pytest.fixture(scope="module")
def chrome() -> Iterator[webdriver.Chrome]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder, made = tmp_path_factory.mktemp("pages"), dict[str, Path]()

    def file(name: str) -> Path:
        if name not in made:
            made[name] = explained(*PAGES[name], out=folder / f"{name}.html")
        return made[name]

    return file


@pytest.fixture
def opened(chrome: webdriver.Chrome, files: Callable[[str], Path]) -> Iterator[Open]:
    """Opens a page; the console must stay silent."""
    pages: list[ExplainPage] = []

    def open_page(name: str) -> ExplainPage:
        pages.append(ExplainPage(chrome, files(name)))
        return pages[-1]

    yield open_page
    assert [error for page in pages for error in page.errors()] == []


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_the_window(opened: Open, name: str) -> None:
    page = opened(name)
    size = page.script("const e = document.documentElement; return [e.scrollWidth, e.scrollHeight]")
    assert size == page.script("return [innerWidth, innerHeight]")
    assert page.script("const f = document.getElementById('facts'); return f.scrollWidth") <= (
        page.script("return document.getElementById('facts').clientWidth")
    )
    graph = page.element("#graph").rect
    for key in page.boxes():
        box = page.place(key)
        assert box["left"] >= graph["x"]
        assert box["right"] <= graph["x"] + graph["width"]
        assert box["bottom"] <= graph["y"] + graph["height"]


@pytest.mark.parametrize("name", ["perceptron", "lstm"])
def test_names_fit_their_boxes(opened: Open, name: str) -> None:
    page = opened(name)
    page.click("#expand")
    page.click("#closer")
    widths = page.script(
        "return [...document.querySelectorAll('.node')].map((each) => [each.querySelector('.box'),"
        " each.querySelector('text')].map((part) => part ? part.getBBox().width : 0))"
    )
    assert all(text <= box for box, text in widths)


def test_the_wheel_zooms_at_the_pointer(opened: Open) -> None:
    page = opened("perceptron")
    before = page.place("loss/")
    x, y = before["x"] + before["width"] / 2, before["y"] + before["height"] / 2
    page.wheel(x, y, -240)
    after = page.place("loss/")
    assert after["width"] > 1.5 * before["width"]
    assert after["x"] + after["width"] / 2 == pytest.approx(x, abs=2)
    page.wheel(x, y, 480)
    assert page.place("loss/")["width"] < before["width"]
    page.click("#whole")
    assert page.place("loss/") == pytest.approx(before)


def test_buttons_zoom_too(opened: Open) -> None:
    page = opened("perceptron")
    before = page.place("loss/")["width"]
    page.click("#closer")
    page.click("#closer")
    assert page.place("loss/")["width"] == pytest.approx(before * 1.4**2, rel=0.01)
    page.click("#farther")
    assert page.place("loss/")["width"] == pytest.approx(before * 1.4, rel=0.01)


def test_a_drag_moves_the_graph_and_clicks_nothing(opened: Open) -> None:
    page = opened("perceptron")
    before, boxes = page.place("loss/"), page.boxes()
    page.drag(before["x"] + 10, before["y"] + 10, 120, 60)
    after = page.place("loss/")
    assert (after["x"] - before["x"], after["y"] - before["y"]) == pytest.approx((120, 60), abs=2)
    assert page.boxes() == boxes


def test_a_scope_opens_and_closes(opened: Open) -> None:
    page = opened("perceptron")
    before = page.place("loss/")
    page.press("loss/")
    assert {"loss/Log", "loss/Softmax", "loss/Sum"} <= set(page.boxes())
    outer, inner = page.place("loss/"), page.place("loss/Log")
    assert outer["left"] < inner["left"]
    assert inner["right"] < outer["right"]
    assert inner["bottom"] < outer["bottom"]
    assert outer["top"] == pytest.approx(before["top"], abs=1)  # it stays under the pointer
    page.press("loss/")
    assert "loss/Log" not in page.boxes()
    assert page.place("loss/") == pytest.approx(before, abs=1)


@pytest.mark.parametrize("name", ["perceptron", "lstm"])
def test_all_scopes_open_and_close(opened: Open, name: str) -> None:
    page = opened(name)
    closed = page.boxes()
    assert any(key.endswith("/") for key in closed)
    page.click("#expand")
    nodes = page.script("return theStage().nodes.length")
    assert page.script("return scene.items.filter((each) => each.kind === 'node').length") == nodes
    overlaps = page.script(
        "const all = scene.items.filter((each) => each.kind !== 'open');"
        "return all.filter((a, n) => all.slice(0, n).some((b) => a.x < b.x + b.width &&"
        " b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height)).length"
    )
    assert overlaps == 0
    page.click("#collapse")
    assert page.boxes() == closed


def test_passes_show_what_they_changed(opened: Open) -> None:
    page = opened("perceptron")
    page.press("loss/")
    page.stage("merge_duplicates")  # the one before
    assert "loss/Log" in page.marked("gone")
    assert "removed by the next pass" in page.element("#legend").text
    page.stage("stable_forms")
    assert "loss/Log" not in page.boxes()
    assert page.marked("new")
    assert "made by this pass" in page.element("#legend").text
    page.stage("as it is written")
    assert "loss/Log" in page.boxes()
    assert not page.marked("new")


def test_colours_by_op_kernel_and_time(opened: Open) -> None:
    page = opened("perceptron")
    page.click("#expand")
    page.find("hidden/MatMul")
    for by, words in {"type": "MatMul", "kernel": "one colour", "time": "µs"}.items():
        page.colour(by)
        assert len(set(page.boxes().values())) > 1
        assert words in page.element("#legend").text or by == "type"
    page.click("#collapse")
    page.colour("time")
    heat = page.boxes()
    assert heat["hidden/"] != heat["loss/"]  # the large product is there


def test_colours_by_device(opened: Open) -> None:
    page = opened("devices")
    page.click("#expand")
    page.colour("device")
    boxes = page.boxes()
    assert boxes["first/product"] != boxes["second/product"]
    legend = page.element("#legend").text
    assert "CPU:0" in legend
    assert "CPU:1" in legend


def test_a_rule_shows_the_users_line(opened: Open) -> None:
    page = opened("perceptron")
    page.rule("logarithm of a softmax")
    assert "tf.log(tf.nn.softmax(logits))" in page.element("#source mark").text
    assert "perceptron.py:" in page.element("#chosen").text
    assert page.marked("chosen") == {"loss/Log"}
    assert page.marked("gone") >= {"loss/Log"}  # the graph is the one before the pass
    page.rule("multiply by one")
    assert "/ 64 * 1" in page.element("#source mark").text


def test_a_node_shows_its_line_inputs_and_kernel(opened: Open) -> None:
    page = opened("perceptron")
    page.press("logits/")
    page.press("logits/MatMul")
    chosen = page.element("#chosen").text
    assert "MatMul" in chosen
    assert "logits/weights/read" in chosen
    assert "tf.matmul(x, weights) + biases" in page.element("#source mark").text
    inputs = [each for each in page.elements("#chosen a") if each.text == "logits/weights/read"]
    inputs[0].click()
    page.settle()
    assert page.marked("chosen") == {"logits/weights/read"}


def test_memory_is_a_curve_of_the_kernels(opened: Open) -> None:
    page = opened("lstm")
    curve = page.element(".memory .area").rect
    assert curve["width"] > 200
    assert curve["height"] > 40
    assert "at the most" in page.element(".memory").text
    page.script("document.querySelector('.memory').scrollIntoView()")
    page.click(".memory")
    assert page.elements("tr.kernel[aria-selected=true]")
    assert page.elements(".memory .now")


def test_a_kernel_marks_its_nodes(opened: Open) -> None:
    page = opened("perceptron")
    page.click("#slowest")
    page.click("tr.kernel")
    assert page.marked("kin")
    page.click("tr.kernel")
    assert not page.marked("kin")


def test_kernels_can_be_sorted_by_time(opened: Open) -> None:
    page = opened("lstm")
    page.click("#slowest")
    rows = page.script(
        "return [...document.querySelectorAll('tr.kernel')].map((each) =>"
        " theStep().kernels[each.dataset.kernel].seconds)"
    )
    assert rows == sorted(rows, reverse=True)


def test_search_goes_from_node_to_node(opened: Open) -> None:
    page = opened("lstm")
    page.find("sigmoid")
    first = page.marked("chosen")
    page.find("sigmoid")
    assert len(first) == 1
    assert page.marked("chosen") != first
    assert page.element("#found").text.startswith("2 of ")
    page.find("nothing has this name")
    assert page.element("#found").text == "none"


def test_steps_can_be_chosen(opened: Open) -> None:
    page = opened("perceptron")
    assert "Adam" in page.element("#step option:checked").text
    page.script(
        "const steps = document.getElementById('step'); steps.value = 0;"
        "steps.dispatchEvent(new Event('change'))"
    )
    page.settle()
    assert "init" in page.boxes()
    assert "loss/" not in page.boxes()


def test_a_large_graph_stays_usable(opened: Open) -> None:
    page = opened("large")
    assert page.script("return theStage().nodes.length") > 5000
    assert len(page.boxes()) < 20  # scopes, closed
    page.click("#expand")
    far = page.script("return document.querySelectorAll('#graph *').length")
    assert far < 1500  # from afar, the boxes of a colour are one element
    assert page.elements("path.boxes")
    page.find("cell_2")
    assert len(page.marked("chosen")) == 1
    near = page.script("return document.querySelectorAll('#graph *').length")
    assert near < 4000  # what is out of sight is not drawn
    page.stage("merge_duplicates")
    assert page.script("return scene.leaves.size") == page.script("return theStage().nodes.length")
