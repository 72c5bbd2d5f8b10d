"""Writes the API reference: one markdown page per public namespace, every name with its docstring.

    python tools/reference.py FOLDER [--source URL]

Everything comes from the registry of public names, the docstrings and the op blocks. A function's
docstring opens with a summary line; `Args:`, `Returns:`, `Raises:` and `Example:` are its sections.
`URL` is what a path such as `thalweg/public.py` is appended to; without it paths are plain text.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import thalweg as tf
from thalweg import public
from thalweg.graph.op import Op
from thalweg.ops.core.compilable import has_code

ROOT = Path(tf.__file__).resolve().parent.parent
SECTIONS = ("Args", "Returns", "Raises", "Example")
MAX_SIGNATURE = 60  # characters on a line; longer ones have a line for each parameter

INTRODUCTION = """# API reference

Every public name, by namespace. A name with several spellings is described once, under the one that
programs should use; the others link to it. The examples run as they are after these lines:

```python
import numpy as np
import thalweg as tf

sess = tf.InteractiveSession()
```

| namespace | names |
|---|---|
"""


# Docstrings


@dataclass
class Docstring:
    """A docstring taken apart."""

    summary: str = ""
    details: str = ""
    arguments: dict[str, str] = field(default_factory=dict)
    sections: dict[str, str] = field(default_factory=dict)

    @property
    def example(self) -> str:
        """The lines of the example, prompts included."""
        return self.sections.get("Example", "")


def parse(text: str | None) -> Docstring:
    """The parts of a docstring: summary, paragraphs, and sections by their titles."""
    lines = inspect.cleandoc(text or "").splitlines()
    parts: dict[str, list[str]] = defaultdict(list)
    title = ""
    for line in lines[1:]:
        heading = line.rstrip().removesuffix(":")
        if line.rstrip().endswith(":") and heading in SECTIONS:
            title = heading
        else:
            parts[title].append(line)
    texts = {title: textwrap.dedent("\n".join(part)).strip() for title, part in parts.items()}
    summary = lines[0] if lines else ""
    details = texts.pop("", "")
    return Docstring(summary, details, dict(_arguments(texts.pop("Args", ""))), texts)


def _arguments(text: str) -> Iterator[tuple[str, str]]:
    """`name: meaning`, further lines of it indented; `a, b: meaning` stands for two."""
    for item in re.split(r"\n(?=\S)", text):
        names, colon, meaning = item.partition(":")
        for name in names.split(",") if colon else ():
            yield name.strip().lstrip("*"), " ".join(meaning.split())


# Names


@dataclass
class Entry:
    """An object and the public names it has."""

    name: str
    aliases: list[str]
    value: Any

    @property
    def page(self) -> str:
        """The page that describes the object."""
        return page_of(self.name, self.value)


def page_of(name: str, value: object) -> str:
    """The page of a name: its first namespace, or that of the dtypes."""
    if isinstance(value, tf.DType):
        return "dtypes"
    namespace = name.rpartition(".")[0]
    return f"tf.{namespace.partition('.')[0]}" if namespace else "tf"


def namespace() -> dict[str, object]:
    """All public names and what they are bound to, those made on demand included."""
    found = public.everything()
    return {name: value for name, value in found.items() if not isinstance(value, ModuleType)}


def entries() -> list[Entry]:
    """Each public object once, under the name that a program should use."""
    named: dict[Any, list[str]] = defaultdict(list)
    values = namespace()
    for name, value in values.items():
        named[id(value) if _has_identity(value) else name].append(name)
    found: list[Entry] = []
    for names in named.values():
        value = values[names[0]]
        first, *rest = sorted(names, key=lambda name: _preference(name, value))
        found.append(Entry(first, rest, value))
    return sorted(found, key=lambda entry: entry.name.lower())


def _has_identity(value: object) -> bool:
    """Whether two names for one object are aliases: equal numbers and strings mean nothing."""
    return not isinstance(value, int | float | str | None)


def _preference(name: str, value: object) -> tuple[bool, bool, int, str]:
    """Sorts the name to use first: not an experiment's, called as the object is, and short."""
    leaf = name.rpartition(".")[2]
    other = leaf != getattr(value, "__name__", getattr(value, "name", leaf))
    return name.startswith(("contrib.", "compat.", "estimator.")), other, name.count("."), name


# What the registry knows


def ops_of(function: Callable[..., Any]) -> list[type[Op]]:
    """The op blocks that a function names: those it closes over, else those in its own code."""
    plain = inspect.unwrap(function)
    cells = [cell.cell_contents for cell in getattr(plain, "__closure__", None) or ()]
    closed = [_block(value) for value in cells]
    code = getattr(plain, "__code__", None)
    used = [_block(plain.__globals__.get(name)) for name in code.co_names] if code else []
    return [block for block in closed if block] or [block for block in used if block]


def _block(value: object) -> type[Op] | None:
    kind = type(value) if isinstance(value, Op) else value
    return kind if isinstance(kind, type) and issubclass(kind, Op) else None


def facts(function: Callable[..., Any]) -> str:
    """Op, dtypes, gradient and devices of a function that is one op; empty for any other."""
    blocks = ops_of(function)
    if len(blocks) != 1 or not hasattr(blocks[0], "parsed"):
        return ""
    (block,) = blocks
    parts = [f"op `{block.type_name}`"]
    parts += [f"`{name}`: {_dtypes(allowed)}" for name, allowed in block.parsed.allowed.items()]
    differentiable = block.has("gradient") and not block.not_differentiable
    parts.append("differentiable" if differentiable else "no gradient")
    parts.append("devices: CPU, GPU" if has_code(block) or block.any_device else "devices: CPU")
    return " · ".join(parts)


def _dtypes(allowed: frozenset[tf.DType]) -> str:
    return ", ".join(dtype.name for dtype in sorted(allowed, key=lambda d: d.as_datatype_enum))


def signature(value: Any) -> str:
    """`(a, b=1, *args)`: the parameters with their defaults and without annotations."""
    try:
        taken = [p for p in parameters_of(value) if p.name != "self"]
    except (TypeError, ValueError):
        return "(...)"
    line = f"({', '.join(_parameters(taken))})"
    if len(line) <= MAX_SIGNATURE:
        return line
    return "(\n" + "".join(f"    {parameter},\n" for parameter in _parameters(taken)) + ")"


def parameters_of(value: Any) -> list[inspect.Parameter]:
    """The parameters of a function or class; those of a message are its fields.

    A `__new__` that takes anything passes it on.
    """
    if hasattr(value, "DESCRIPTOR"):
        fields = [field.name for field in value.DESCRIPTOR.fields]
        kind = inspect.Parameter.KEYWORD_ONLY
        return [inspect.Parameter(name, kind, default=None) for name in fields]
    taken = list(inspect.signature(value).parameters.values())
    is_open = all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in taken)
    if isinstance(value, type) and taken and is_open:
        return list(inspect.signature(value.__init__).parameters.values())[1:]
    return taken


def _parameters(parameters: list[inspect.Parameter]) -> Iterator[str]:
    starred = False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        starred = starred or parameter.kind is parameter.VAR_POSITIONAL
        yield _parameter(parameter)


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    default = "" if parameter.default is parameter.empty else f"={_default(parameter.default)}"
    return f"{stars}{parameter.name}{default}"


def _default(value: Any) -> str:
    """A default as a reader would write it, not the address of an object."""
    text = repr(value)
    if not text.startswith("<"):
        return text
    if text == "<factory>" or type(value) is object:
        return "..."
    return getattr(value, "__name__", f"{type(value).__name__}()")


# Markdown


@dataclass
class Writer:
    """Renders entries; knows where each name is described and where sources are."""

    homes: dict[str, str]
    source_url: str = ""

    def link(self, name: str) -> str:
        """A link to the description of a public name."""
        return f"[`tf.{name}`]({self.homes[name]}.md#tf.{name})"

    def page(self, title: str, described: list[Entry], aliases: list[tuple[str, Entry]]) -> str:
        """A namespace: a table of what is there, then each name."""
        rows = {entry.name: (self.link(entry.name), _summary(entry.value)) for entry in described}
        rows |= {name: (f"`tf.{name}`", f"see {self.link(e.name)}") for name, e in aliases}
        table = [f"| {name} | {_cell(text)} |" for _, (name, text) in sorted(rows.items())]
        parts = [f"# {title}", "\n".join(["| name | what it is |", "|---|---|", *table])]
        return "\n\n".join(parts + [self.entry(entry) for entry in described]) + "\n"

    def entry(self, entry: Entry) -> str:
        """One name: heading, signature, docstring, facts, aliases, source."""
        value = entry.value
        parts = [f'<a id="tf.{entry.name}"></a>', f"## tf.{entry.name}"]
        if not callable(value):
            return "\n\n".join([*parts, self._constant(value), *self._aliases(entry)])
        parts.append(f"```python\ntf.{entry.name}{signature(value)}\n```")
        parts.append(docstring(value))
        if isinstance(value, type):
            parts += self._members(entry)
        elif known := facts(value):
            parts.append(f"*{known}*")
        parts += [*self._aliases(entry), self._source(value)]
        return "\n\n".join(part for part in parts if part)

    def _constant(self, value: object) -> str:
        if not isinstance(value, tf.DType):
            return f"`{value!r}`"
        numpy = getattr(value.as_numpy_dtype, "__name__", str(value.as_numpy_dtype))
        words = [f"{8 * value.size} bits" if value.size else "no fixed size", f"NumPy `{numpy}`"]
        if value.is_integer or value.is_floating:
            words.append(f"from `{value.min}` to `{value.max}`")
        return " · ".join(words)

    def _aliases(self, entry: Entry) -> list[str]:
        names = ", ".join(f"`tf.{name}`" for name in entry.aliases)
        return [f"Also: {names}"] if names else []

    def _members(self, entry: Entry) -> Iterator[str]:
        """The methods and properties of a class that no public base of it describes."""
        if bases := public_bases(entry.value):
            yield "Bases: " + ", ".join(self.link(public_classes()[base]) for base in bases)
        for name, member in members(entry.value):
            shown = "" if isinstance(member, property) else signature(member)
            yield f"### {entry.name.rpartition('.')[2]}.{name}"
            yield f"```python\n{name}{shown}\n```"
            yield docstring(member)

    def _source(self, value: Any) -> str:
        plain = inspect.unwrap(value)
        file = Path(getattr(sys.modules.get(plain.__module__ or ""), "__file__", None) or "/")
        if not file.resolve().is_relative_to(ROOT / "thalweg"):
            return ""
        path = file.resolve().relative_to(ROOT)
        code = getattr(plain, "__code__", None)
        at = f"#L{code.co_firstlineno}" if code and Path(code.co_filename) == file else ""
        return (
            f"Source: [{path}]({self.source_url}{path}{at})"
            if self.source_url
            else (f"Source: `{path}`")
        )


def docstring(value: object) -> str:
    """A docstring as markdown."""
    doc = parse(inspect.getdoc(value))
    parts = [_text(doc.summary), _text(doc.details)]
    if doc.arguments:
        rows = [f"- `{name}`: {_text(meaning)}" for name, meaning in doc.arguments.items()]
        parts += ["**Arguments**", "\n".join(rows)]
    for title in ("Returns", "Raises"):
        if title in doc.sections:
            parts += [f"**{title}**", _text(doc.sections[title])]
    if doc.example:
        parts += ["**Example**", f"```pycon\n{doc.example}\n```"]
    return "\n\n".join(part for part in parts if part)


def _summary(value: object) -> str:
    if isinstance(value, tf.DType) or not callable(value):
        return f"`{value!r}`"
    return _text(parse(inspect.getdoc(value)).summary)


def _text(text: str) -> str:
    """Prose for markdown: what would be markup outside code spans is not."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(p if p.startswith("`") else re.sub(r"([*<\[\]])", r"\\\1", p) for p in pieces)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def public_classes() -> dict[type, str]:
    """Public classes and the names they are described under."""
    if not _classes:
        _classes.update({e.value: e.name for e in entries() if isinstance(e.value, type)})
    return _classes


_classes: dict[type, str] = {}


_METHODS = FunctionType | classmethod | staticmethod


def public_bases(kind: type) -> list[type]:
    """The bases of a class that are described themselves."""
    return [base for base in kind.__mro__[1:] if base in public_classes()]


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """The methods and properties of a class that no public base of it describes."""
    inherited = {name for base in public_bases(kind) for name in dir(base)}
    for name in sorted(set(dir(kind)) - inherited):
        member = inspect.getattr_static(kind, name)
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            yield name, member
        elif isinstance(member, _METHODS) and _is_ours(getattr(kind, name)):
            yield name, getattr(kind, name)


def _is_ours(value: object) -> bool:
    return str(getattr(value, "__module__", "")).startswith("thalweg")


def pages(source_url: str = "") -> dict[str, str]:
    """The text of each page by its name."""
    described: dict[str, list[Entry]] = defaultdict(list)
    aliases: dict[str, list[tuple[str, Entry]]] = defaultdict(list)
    found = entries()
    for entry in found:
        described[entry.page].append(entry)
        for name in entry.aliases:
            if page_of(name, entry.value) != entry.page:
                aliases[page_of(name, entry.value)].append((name, entry))
    writer = Writer({entry.name: entry.page for entry in found}, source_url)
    titles = sorted(described.keys() | aliases.keys(), key=lambda title: (title == "dtypes", title))
    texts = {title: writer.page(title, described[title], aliases[title]) for title in titles}
    counts = {title: len(described[title]) + len(aliases[title]) for title in titles}
    rows = [f"| [{title}]({title}.md) | {counts[title]} |" for title in titles]
    return {"index": INTRODUCTION + "\n".join(rows) + "\n"} | texts


def main() -> None:
    """Write the pages."""
    parser = argparse.ArgumentParser(description="Writes the API reference.")
    parser.add_argument("folder", type=Path, help="where the pages go")
    parser.add_argument("--source", default="", help="the URL that paths of sources are added to")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    written = pages(options.source)
    for name, text in written.items():
        (options.folder / f"{name}.md").write_text(text)
    print(f"{options.folder}: {len(written)} pages")


if __name__ == "__main__":
    main()
