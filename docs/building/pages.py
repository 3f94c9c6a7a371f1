"""What plain Markdown pages tell Sphinx: pages read alike on a site and on a code host.

docs/index.md    "- [Why](why.md): …" below "## Begin"     a line of the site's menu
docs/api/*.md    "- `gradwire.attach`"                     its docstring stands there
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
INDEX = "docs/index.md"
FOLDERS = ("docs", "benchmarks", "contrib", "recipes")

_SECTION = re.compile(r"^## (.*)$", re.MULTILINE)
_ENTRY = re.compile(r"^- \[([^]]*)\]\(([^)#]+\.md)\)", re.MULTILINE)
_NAME = re.compile(r"^- `(gradwire(?:\.\w+)+)`(?:.*)$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[([^]]*)\]\(([^)\s#]+)\)")


def pages() -> list[str]:
    """All pages of the site, as paths from the repository's root."""
    found = [*ROOT.glob("*.md"), *(p for f in FOLDERS for p in (ROOT / f).rglob("*.md"))]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def text_of(page: str) -> str:
    """What a page holds."""
    return (ROOT / page).read_text(encoding="utf-8")


def menu(page: str = INDEX) -> Iterator[tuple[str, dict[str, str]]]:
    """Sections of the page that lists all others: of each its pages, and their names in it."""
    _, *parts = _SECTION.split(text_of(page))
    for title, text in zip(parts[::2], parts[1::2]):
        entries = {_beside(page, target): name for name, target in _ENTRY.findall(text)}
        if entries:
            yield title, entries


def names(page: str) -> list[str]:
    """The names whose docstrings stand on a page of the API, in its order."""
    return _NAME.findall(text_of(page))


def documented() -> dict[str, str]:
    """Each name of the API, and the page that has it."""
    return {name: page for page in pages() if _is_reference(page) for name in names(page)}


def as_sphinx_reads(page: str, text: str) -> str:
    """A page with what Sphinx needs besides."""
    if page == INDEX:
        text += "".join(_toctree(title, entries) for title, entries in menu())
    if _is_reference(page):
        text = _NAME.sub(lambda found: _directive(found[1]), text)
    text = text.replace("\n```console\n", "\n```bash\n")
    return _LINK.sub(lambda found: _unless_folder(page, found), text)


def _is_reference(page: str) -> bool:
    return page.startswith("docs/api/")


def _beside(page: str, target: str) -> str:
    """A link's target, from the repository's root."""
    here = (ROOT / page).parent / target
    return here.resolve().relative_to(ROOT).as_posix()


def _toctree(title: str, entries: dict[str, str]) -> str:
    listed = "\n".join(
        f"{name} </{PurePosixPath(page).with_suffix('')}>" for page, name in entries.items()
    )
    return f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{listed}\n```\n"


def _directive(name: str) -> str:
    from building.names import kind_of

    kind = kind_of(name)
    members = "\n   :members:" if kind in ("class", "exception") else ""
    return f"```{{eval-rst}}\n.. auto{kind}:: {name}{members}\n```\n"


def _unless_folder(page: str, found: re.Match[str]) -> str:
    """A link to a folder is words on the site: folders are no pages."""
    is_local = "://" not in found[2]
    return found[1] if is_local and (ROOT / _beside(page, found[2])).is_dir() else found[0]
