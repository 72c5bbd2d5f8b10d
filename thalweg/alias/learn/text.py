"""Text to ids, and data sets by name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from thalweg.alias import mnist

_WORD = re.compile(r"[A-Z]{2,}(?![a-z])|[A-Z][a-z]+(?=[A-Z])|[\'\w\-]+", re.UNICODE)


def tokenizer(iterator: Iterable[str]) -> Iterator[list[str]]:
    """The words of each text."""
    return (_WORD.findall(text) for text in iterator)


class CategoricalVocabulary:
    """Words and their numbers; 0 is for what is not known."""

    def __init__(self, unknown_token: str = "<UNK>", support_reverse: bool = True) -> None:
        self._unknown, self._support_reverse = unknown_token, support_reverse
        self._mapping = {unknown_token: 0}
        self._counts: Counter[str] = Counter()
        self._frozen = False

    def __len__(self) -> int:
        return len(self._mapping)

    def freeze(self, freeze: bool = True) -> None:
        """Whether words that are not known stay so."""
        self._frozen = freeze

    def get(self, category: str) -> int:
        """The number of a word, a new one where it is new and the vocabulary is not frozen."""
        if category not in self._mapping:
            if self._frozen:
                return 0
            self._mapping[category] = len(self._mapping)
        return self._mapping[category]

    def add(self, category: str, count: int = 1) -> None:
        """Count a word."""
        if self.get(category) > 0:
            self._counts[category] += count

    def trim(self, min_frequency: int, max_frequency: int = -1) -> None:
        """Keep the words that are seen more often than that, the most frequent ones first."""
        ordered = sorted(sorted(self._counts.items()), key=lambda item: item[1], reverse=True)
        kept = [
            (word, count)
            for word, count in ordered
            if count > min_frequency and not 0 < max_frequency <= count
        ]
        self._counts = Counter(dict(kept))
        self._mapping = {self._unknown: 0} | {word: i for i, (word, _) in enumerate(kept, start=1)}

    def reverse(self, class_id: int) -> str:
        """The word of a number."""
        if not self._support_reverse:
            raise ValueError("This vocabulary was made without support_reverse.")
        return list(self._mapping)[class_id]


class VocabularyProcessor:
    """Turns texts into rows of word numbers of one length."""

    def __init__(
        self,
        max_document_length: int,
        min_frequency: int = 0,
        vocabulary: CategoricalVocabulary | None = None,
        tokenizer_fn: Any = None,
    ) -> None:
        self.max_document_length, self.min_frequency = max_document_length, min_frequency
        self.vocabulary_ = vocabulary or CategoricalVocabulary()
        self._tokenizer = tokenizer_fn or tokenizer

    def fit(self, raw_documents: Iterable[str], unused_y: Any = None) -> VocabularyProcessor:
        """Learn the words of some texts."""
        for tokens in self._tokenizer(raw_documents):
            for token in tokens:
                self.vocabulary_.add(token)
        if self.min_frequency > 0:
            self.vocabulary_.trim(self.min_frequency)
        self.vocabulary_.freeze()
        return self

    def fit_transform(self, raw_documents: Sequence[str], unused_y: Any = None) -> Iterator[Any]:
        """Learn the words of some texts, and turn them into numbers."""
        self.fit(raw_documents)
        return self.transform(raw_documents)

    def transform(self, raw_documents: Iterable[str]) -> Iterator[Any]:
        """The rows of some texts; 0 where a text has ended."""
        for tokens in self._tokenizer(raw_documents):
            row = np.zeros(self.max_document_length, np.int64)
            numbers = [self.vocabulary_.get(token) for token in tokens[: self.max_document_length]]
            row[: len(numbers)] = numbers
            yield row

    def reverse(self, documents: Iterable[Any]) -> Iterator[str]:
        """The texts of some rows."""
        for row in documents:
            yield " ".join(self.vocabulary_.reverse(int(number)) for number in row)


def load_dataset(name: str, **options: Any) -> Any:
    """A data set by name: `mnist`, from the folder `MNIST-data`."""
    if name != "mnist":
        raise ValueError(f"Thalweg reads no data set named {name}: it downloads nothing.")
    return mnist.load_mnist(**options)
