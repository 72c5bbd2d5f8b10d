"""What LLVM text claims of memory and numbers, read out of the text: a lint with a reason per rule.

LLVM takes every `align`, `noalias`, `nsw` and the like as a promise. Each one found in a text must
be of a kind that a rule here allows; everything else is a finding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import gcd

_SIZES = {"half": 2, "bfloat": 2, "float": 4, "double": 8, "ptr": 8}
_TYPE = r"(?:<\d+ x )?(?P<scalar>i\d+|half|bfloat|float|double|ptr)>?"
_ACCESS = re.compile(
    rf"\b(?:load|store)(?: atomic)? {_TYPE}.*, align (?P<align>\d+)"
    rf"|@llvm\.masked\.(?:load|store|gather|scatter)\.v\d+(?P<short>[if]\d+|bf16)\."
    rf".*\balign (?P<masked>\d+)"
)
_DEFINED = re.compile(r"\s*(?P<name>%[\w.]+) = (?P<rest>.*)")
_REGISTER = re.compile(r"%[\w.]+")
_NSW = re.compile(r"(?P<function>\w+) (?:nuw )?nsw (?P<type>\S+) ")
#: Words that claim something and that no text of a kernel has.
_NEVER = re.compile(
    r"\b(inbounds|nuw|nontemporal|dereferenceable\w*|nonnull|noundef|disjoint|nneg|samesign|"
    r"invariant|readonly|readnone|writeonly|memory|range|assume|fast|nnan|ninf|nsz|arcp|contract|"
    r"afn|unreachable|musttail)\b|!(nontemporal|noalias|range|nonnull|align|tbaa|alias\.scope)"
)
#: Claims that hold for a reason that stands beside them.
_ALLOWED = {
    r"%next = add nuw nsw i64 %iteration, 1$": "counted up to a bound: `_write_iterations`",
    r"sdiv exact i64 ": "boxes begin at tiles: `Copy._tiles`",
    r" = alloca .*, align 64$": "asks for an alignment, claims none",
    r"^declare ": "is no use of it",
}


#: The same of CUDA kernels.
_ALLOWED_ON_GRIDS = {
    r"call range\(i32 [01], \d+\) i32 @llvm\.nvvm\.read\.ptx\.sreg\.": "hardware limits these",
    r"^@grid_memory = external addrspace\(3\) ": "asks for an alignment, claims none",
}
#: The same of those with narrow floats, whose expressions are rounded at their end alone.
_ALLOWED_OF_NARROW_FLOATS = {
    r" = f(add|sub|mul) contract ": "one rounding is as good as two: `arithmetic.instruction`",
    r" = call afn .* @llvm\.(tanh|exp2|sqrt)\.": "the table allows it: `Function.narrow`",
}
_MARKS = (["i32"], ["i64"], ["ptr"], ["ptr", "noalias", "nocapture"])
_MARKS_ON_GRIDS = (["i32"], ["i64"], ["ptr"], ["ptr", "noalias"], ["ptr", "noalias", "readonly"])
_MARKS_IF_ALIGNED = tuple([*mark, "align", "16"] for mark in _MARKS_ON_GRIDS if "noalias" in mark)
_WIDEST_ON_GRIDS = 16  # bytes at multiples of which the buffers of an aligned kernel begin


@dataclass
class _Function:
    """What is known of the registers of a function so far."""

    entry: bool  # called by the step, with words, and not by another function of the module
    widest: int = 0  # the alignment that whole vectors may have
    words: set[str] = field(default_factory=set[str])  # addresses of argument words
    data: set[str] = field(default_factory=set[str])  # what depends on what was loaded as data
    shared: set[str] = field(default_factory=set[str])  # addresses in shared memory


def findings(
    text: str, on_grid: bool = False, aligned: bool = False, narrow: bool = False
) -> list[str]:
    """The claims in a module that no rule allows, each with its line.

    Of one for a grid, whose buffers may all be `aligned`, rules allow a little more; and more if it
    has `narrow` floats.
    """
    rules = [_ALLOWED_ON_GRIDS] * on_grid + [_ALLOWED_OF_NARROW_FLOATS] * narrow
    allowed = [*_ALLOWED, *(pattern for rule in rules for pattern in rule)]
    return list(_findings(text, on_grid, allowed, _WIDEST_ON_GRIDS if aligned else 0))


def _findings(text: str, on_grid: bool, allowed: Sequence[str], widest: int) -> Iterator[str]:
    function = _Function(False)
    called = set(re.findall(r"call void @(\w+)\(", text))
    for line in text.splitlines():
        if line.startswith("define"):
            function = _new_function(line, called)
            function.widest = widest
            marks = _MARKS_ON_GRIDS if on_grid else _MARKS
            yield from _wrong_marks(line, (*marks, *(_MARKS_IF_ALIGNED if widest else ())))
        elif not any(re.search(pattern, line) for pattern in allowed):
            yield from (f"{why}: {line.strip()}" for why in _wrong(line, function))


def _new_function(line: str, called: set[str]) -> _Function:
    name = re.search(r"@(\w+)\(", line)
    result = _Function(name is not None and name[1] not in called)
    if result.entry:
        result.words.add("%p0")
    return result


def _wrong_marks(line: str, allowed: Sequence[list[str]]) -> Iterator[str]:
    """Of parameters only those that are pointers are noalias, and nothing else is said of them but
    the alignment of buffers that all have it."""
    for mark in re.findall(r"[(,] *(\S+ [^,)%]*)%", line):
        if mark.split() not in allowed:
            yield f"a parameter is {mark.strip()}: {line}"


def _wrong(line: str, function: _Function) -> Iterator[str]:
    _follow(line, function)
    if found := _NEVER.search(line.partition('"')[0]):
        yield f"{found[0]} is never claimed"
    used = set(_REGISTER.findall(line))
    widest = _WIDEST_ON_GRIDS if used & function.shared else function.widest  # laid out for it
    if (access := _ACCESS.search(line)) and _claimed(access) > _most(access, widest):
        yield "more alignment than an element has"
    if found := _NSW.search(line):
        if found["type"] != "i64":
            yield "nsw of what is no index"
        if function.data.intersection(_REGISTER.findall(line)):
            yield "nsw of what was loaded as data"
    if " exact " in line:
        yield "exact without a rule"


def _follow(line: str, function: _Function) -> None:
    """Note whether a register is an address of words, or depends on data."""
    if not (found := _DEFINED.match(line)):
        return
    used = set(_REGISTER.findall(found["rest"]))
    is_address = found["rest"].startswith("getelementptr") and used & function.shared
    if is_address or "@grid.shared(" in found["rest"]:
        function.shared.add(found["name"])
    if used & function.words and found["rest"].startswith("getelementptr"):
        function.words.add(found["name"])
    elif "load" in found["rest"] or "gather" in found["rest"]:
        if not used & function.words:
            function.data.add(found["name"])
    elif used & function.data and not found["rest"].startswith("getelementptr"):
        function.data.add(found["name"])


def _claimed(access: re.Match[str]) -> int:
    return int(access["align"] or access["masked"])


def _most(access: re.Match[str], widest: int) -> int:
    """The alignment that an access may claim: that of an element, or of a vector."""
    return max(_size(access), widest) if "<" in access[0] else _size(access)


def _size(access: re.Match[str]) -> int:
    scalar = access["scalar"] or access["short"]
    return _SIZES.get(scalar) or max(int(re.sub(r"\D", "", scalar)) // 8, 1)


# Text that walks over bytes: what an address is aligned to follows from how it was made


def unfounded(text: str, aligned: dict[str, int]) -> list[str]:
    """Claims of more alignment than follows from how an address was made.

    An address on the stack has what it asks for, one at a multiple of some bytes from another one
    has what both have in common. Of parameters and counters `aligned` says it, else nothing holds.
    """
    result: list[str] = []
    known: dict[str, int] = {}
    for line in text.splitlines():
        if line.startswith("define"):
            known = {name: aligned.get(name, 1) for name in _REGISTER.findall(line)}
        elif line.startswith("@"):
            continue
        _derive(line, known, aligned)
        for claimed, name in _uses(line):
            if claimed > known.get(name, aligned.get(name, 1)):
                result.append(line.strip())
    return result


def _uses(line: str) -> Iterator[tuple[int, str]]:
    for name, claimed in re.findall(r", ptr ([%@][\w.]+), align (\d+)", line):
        yield int(claimed), name
    for claimed, name in re.findall(r"ptr align (\d+) ([%@][\w.]+)", line):
        yield int(claimed), name
    for size, name in re.findall(r"(?:load i|store i)(\d+)[^,]*, ptr ([%@][\w.]+)$", line):
        yield max(int(size) // 8, 1), name  # where nothing is said, the type's own is meant


_ALLOCA = re.compile(r"alloca .*, align (\d+)")
_SCALED = re.compile(r"mul i64 %[\w.]+, (\d+)$")
_STEPPED = re.compile(r"getelementptr (?:inbounds )?i(\d+), ptr ([%@][\w.]+), i64 (\S+)$")


def _derive(line: str, known: dict[str, int], aligned: dict[str, int]) -> None:
    if not (found := _DEFINED.match(line)):
        return
    name, rest = found["name"], found["rest"].strip()
    if asked := _ALLOCA.match(rest):
        known[name] = int(asked[1])
    elif scaled := _SCALED.match(rest):
        known[name] = int(scaled[1])
    elif stepped := _STEPPED.match(rest):
        bits, base, step = stepped.groups()
        known_factors = {**aligned, **known}
        count = known_factors.get(step, 1) if step.startswith("%") else abs(int(step))
        known[name] = gcd(known_factors.get(base, 1), int(bits) // 8 * count)
