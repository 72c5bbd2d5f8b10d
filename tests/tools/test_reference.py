"""The pages of the API reference: every public name is on one, and links lead somewhere."""

from __future__ import annotations

import re
from functools import cache

import pytest

import thalweg as tf
from thalweg import public
from tools import reference


@cache
def pages() -> dict[str, str]:
    return reference.pages("https://example.org/")


def test_every_public_name_is_on_a_page() -> None:
    text = "\n".join(pages().values())
    named = set(re.findall(r"`tf\.([\w.]+)`", text)) | set(re.findall(r'id="tf\.([\w.]+)"', text))
    assert set(reference.namespace()) - named == set()
    assert {"nn.conv2d", "train.Example"} <= named


def test_links_between_pages_have_targets() -> None:
    for page, text in pages().items():
        for target, anchor in re.findall(r"\]\(([\w.]+)\.md(?:#([\w.]+))?\)", text):
            assert not anchor or f'<a id="{anchor}"></a>' in pages()[target], (page, anchor)


def test_an_entry_has_signature_facts_aliases_and_source() -> None:
    text = pages()["tf"].partition("## tf.tanh\n")[2].partition("<a id=")[0]
    assert "tf.tanh(x, name=None)" in text
    assert "op `Tanh` · `T`: float32, float64" in text
    assert "differentiable · devices: CPU, GPU" in text
    assert "Also: `tf.math.tanh`, `tf.nn.tanh`" in text
    assert re.search(r"\(https://example.org/thalweg/ops/math/transcendental.py\)", text)


def test_a_long_signature_has_a_line_for_each_parameter() -> None:
    text = pages()["tf.nn"].partition("## tf.nn.conv2d\n")[2].partition("```\n")[0]
    assert "tf.nn.conv2d(\n    input,\n    filter=None,\n" in text


@pytest.mark.parametrize(
    ("prose", "markdown"),
    [("a * b < [c]", r"a \* b \< \[c\]"), ("`a * b` * c", r"`a * b` \* c")],
)
def test_prose_is_no_markup(prose: str, markdown: str) -> None:
    assert reference.docstring(type("Made", (), {"__doc__": prose})) == markdown


def test_lazy_names_are_listed() -> None:
    assert "train.Example" not in public.names()
    assert public.everything()["train.Example"] is tf.train.Example
