"""Lines of the text form of kernels, as tokens that are taken one by one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from thalweg.ir.functions.reductions import REDUCTIONS

_TOKEN = re.compile(
    rf"""\s*(
    w\d+~-?\d+(?:_\w+)?                                             # a word: w3~64
    |(?:0x[0-9a-f]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?|inf|nan)(?:_\w+)?\b  # a number: 0.5_f64
    |(?:{"|".join(REDUCTIONS)})=(?!=)                                 # a store that combines: max=
    |[a-zA-Z]\w*
    |//|<<|>>|<=|>=|==|!=|\+=|\*=|[-+*/%<>=&|^()\[\]:,]
    )""",
    re.VERBOSE,
)


class ParseError(ValueError):
    """Text that is no kernel: the line, and what is wrong with it."""


@dataclass
class Line:
    """A line: how far it is indented, its tokens, and how many of them were taken."""

    number: int
    text: str
    indent: int
    tokens: list[str]
    taken: int = 0

    @classmethod
    def of(cls, number: int, text: str) -> Line:
        """A line of text, of which some may be blank but not all."""
        content = text.rstrip()
        line = cls(number, content.strip(), len(content) - len(content.lstrip()), [])
        position = line.indent
        while position < len(content):
            token = _TOKEN.match(content, position)
            if token is None:
                line.fail(f"what is {content[position:]!r}?")
            line.tokens.append(token[1])
            position = token.end()
        return line

    def fail(self, reason: str) -> NoReturn:
        """Refuse the text."""
        raise ParseError(f"line {self.number}: {self.text}\n{reason}")

    @property
    def next(self) -> str:
        """The token that comes next; empty at the end of the line."""
        return self.tokens[self.taken] if self.taken < len(self.tokens) else ""

    @property
    def after_next(self) -> str:
        """The token after that."""
        return self.tokens[self.taken + 1] if self.taken + 1 < len(self.tokens) else ""

    def take(self) -> str:
        """The next token, taken."""
        token = self.next
        if not token:
            self.fail("something is missing at the end")
        self.taken += 1
        return token

    def accept(self, *tokens: str) -> bool:
        """Take the next token if it is one of these."""
        found = bool(self.next) and self.next in tokens
        self.taken += found
        return found

    def expect(self, token: str) -> None:
        """Take a token that has to come here."""
        if not self.accept(token):
            self.fail(f"expected {token!r} before {' '.join(self.tokens[self.taken :])!r}")

    def finish(self) -> None:
        """Be at the end of the line."""
        if self.next:
            self.fail(f"{' '.join(self.tokens[self.taken :])!r} is too much")
