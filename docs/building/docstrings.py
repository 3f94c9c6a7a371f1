"""Docstrings, which are Markdown with Google's sections, as what autodoc takes.

`code`                       stays code (in reStructuredText it would be something else)
|x|, *, word_                are no markup
name: what it is             are items, where the second lines of some are indented
    four spaces further in   is a block, of Python if it can be compiled
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

_CODE = re.compile(r"``(.+?)``|`(.+?)`", re.DOTALL)
_SECTION = re.compile(r" *(Args|Attributes|Raises|Returns|Yields):$")
_FIELD = re.compile(r"\w[\w, ]*: ")


def translated(lines: list[str]) -> list[str]:
    """The lines of a docstring that is cleaned of its indentation."""
    return [line for part in _parts(lines) for line in part]


def _parts(lines: list[str]) -> Iterator[list[str]]:
    indent, paragraph = 0, list[str]()
    rest = list(lines)
    while rest:
        line = rest.pop(0)
        if not line.strip():
            yield [*_escaped(paragraph), ""]
            paragraph = []
        elif not paragraph and _indent(line) >= indent + 4:
            block = [line, *_taken(rest, _indent(line))]
            yield _code_block(block, indent)
        else:
            if not paragraph:
                indent = _indent(line)
            paragraph.append(line)
    yield _escaped(paragraph)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _taken(rest: list[str], indent: int) -> Iterator[str]:
    """What of the rest still belongs to a block, taken from it."""
    while rest and (not rest[0].strip() or _indent(rest[0]) >= indent):
        yield rest.pop(0)


def _code_block(block: list[str], indent: int) -> list[str]:
    text = textwrap.dedent("\n".join(block)).strip("\n")
    inside = textwrap.indent(text, " " * (indent + 3)).splitlines()
    return [f"{' ' * indent}.. code-block:: {_language(text)}", "", *inside, ""]


def _language(text: str) -> str:
    try:
        compile(text, "docstring", "exec")
    except SyntaxError:
        return "text"
    return "python"


def _escaped(paragraph: list[str]) -> list[str]:
    """Code as literals; of all else nothing is markup."""
    text = "\n".join(_items(paragraph))
    out, end = "", 0
    for code in _CODE.finditer(text):
        before, behind = text[end : code.start()], text[code.end() : code.end() + 1]
        glue = r"\ " if out and not before else ""
        out += glue + _plain(before)
        out += r"\ " if before[-1:].isalnum() else ""
        out += f"``{code[1] or code[2]}``" + (r"\ " if behind.isalnum() else "")
        end = code.end()
    return (out + _plain(text[end:])).split("\n") if text else []


def _items(paragraph: list[str]) -> list[str]:
    """Fields that are told one below the other, as a list."""
    starts = [_FIELD.match(line) is not None for line in paragraph]
    hangs = any(line.startswith("    ") for line in paragraph)
    if not hangs or _SECTION.match(paragraph[0]) or not starts[0]:
        return paragraph
    marked = (
        f"- {line}" if not line.startswith(" ") else f"  {line.strip()}" for line in paragraph
    )
    return list(marked)


def _plain(text: str) -> str:
    """No markup, but for pages that are named."""
    text = re.sub(r"[\\*|]|(?<=\w)_(?!\w)", lambda found: "\\" + found[0], text)
    return re.sub(r"docs/([\w-]+)\.md", r":doc:`/docs/\1`", text)
