"""The text that ships with Python, as numbered words: nothing is downloaded.

`pydoc_data.topics` and the docstrings of the standard library, written as the Penn Treebank is:
lower case, numbers as N, rare words as <unk>, <eos> between texts. The same interpreter always
gives the same numbers.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

VOCABULARY = 10_000
UNKNOWN, END, NUMBER = "<unk>", "<eos>", "N"

# Tests, tables, and what is installed beside the standard library rather than part of it.
_SKIPPED = frozenset(
    {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
    | {"encodings", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "turtledemo"}
)
# A word with its underscores, a number, or a run of one punctuation mark (>>> is one word).
_WORD = re.compile(r"[a-z_]+(?:'[a-z]+)?|[0-9]+(?:\.[0-9]+)*|([^\sa-z0-9_])\1*")

_Documented: TypeAlias = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Corpus:
    """Words by number: `train` and `held_out` are 1-D int64, `words[i]` is how i is spelled."""

    words: tuple[str, ...]
    train: Tensor
    held_out: Tensor

    def save(self, path: Path) -> None:
        """Writes what the ranks need, as `torch.load(weights_only=True)` reads it."""
        import torch

        torch.save({"train": self.train, "held_out": self.held_out}, path)


def build(held_out: int, documents: Sequence[str] | None = None) -> Corpus:
    """Returns the corpus, with its last `held_out` words kept from training.

    Args:
        held_out: how many words are for the held-out slice.
        documents: the texts; those that ship with Python by default (about two seconds).
    """
    import torch

    texts = python_documents() if documents is None else documents
    stream = [word for text in texts for word in [*tokenize(text), END]]
    words = vocabulary(stream)
    number = {word: i for i, word in enumerate(words)}
    unknown = number[UNKNOWN]
    numbers = torch.tensor([number.get(word, unknown) for word in stream])
    return Corpus(words, numbers[:-held_out], numbers[-held_out:])


def vocabulary(stream: Sequence[str], size: int = VOCABULARY) -> tuple[str, ...]:
    """Returns <unk> and the most frequent words, `size` in all at most; ties by spelling."""
    counts = Counter(stream)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return (UNKNOWN, *ranked[: size - 1])


def tokenize(text: str) -> list[str]:
    """Returns a text's words and punctuation, in lower case, numbers as N."""
    found = (match.group() for match in _WORD.finditer(text.lower()))
    return [NUMBER if word[0].isdigit() else word for word in found]


def python_documents() -> list[str]:
    """Returns every text once, in an order that mixes the modules but never changes."""
    from pydoc_data.topics import topics

    texts = {*topics.values(), *_docstrings()}
    return sorted(texts, key=lambda text: hashlib.sha256(text.encode()).digest())


def _docstrings() -> Iterator[str]:
    for folder, inside, files in os.walk(sysconfig.get_path("stdlib")):
        inside[:] = [name for name in inside if name not in _SKIPPED]  # these are not entered
        for name in files:
            if name.endswith(".py"):
                yield from _docstrings_of(Path(folder, name))


def _docstrings_of(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return  # a template or a broken link: not a module of the library
    yield from _walk(tree)


def _walk(node: _Documented) -> Iterator[str]:
    text = ast.get_docstring(node)
    if text:
        yield text
    for child in node.body:
        if isinstance(child, _DEFINITIONS):
            yield from _walk(child)
