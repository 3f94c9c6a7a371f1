"""Every block, command and link of README, docs, CONTRIBUTING and the benchmarks' pages.

Whatever a reader may paste is run, or at least read by the program that it names. The language of
pictures and output says that they are not.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tomllib
from pathlib import Path

import doc_run
import pytest
import torch.distributed as dist
from doc_check import check, mentioned
from doc_pages import LANGUAGES, PAGES, ROOT, anchors, blocks, commands, links, spans, text_of
from ranks import Ranks

from gradwire.lab import available
from gradwire.topology import Cluster

EXCERPTS = "docs/trainers.md"
"""The page whose Python is cut from examples, which tests/distributed/test_examples.py runs."""

NAMESPACES = "docs/lab.md"
"""The page whose Python builds networks: it is run where that is allowed."""


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page: str) -> None:
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{block.place}: a block of no known language"
        if block.language == "text":
            hidden = re.search(
                r"^(gradwire|make|python|torchrun|import) ", block.text, re.MULTILINE
            )
            assert not hidden, f"{block.place}: this can be run: call it console or python"
    assert text_of(page).count("```") == 2 * len(blocks(page))


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_one(page: str) -> None:
    """Each program accepts its commands: gradwire and torchrun by parsers, make by targets."""
    for block in blocks(page):
        if block.language == "console":
            for command in commands(block.text):
                try:
                    check(command)
                except BaseException as error:
                    error.add_note(f"in the block at {block.place}")
                    raise
    for span in spans(page):
        if re.match(r"(gradwire|make) [a-z-]", span):
            mentioned(shlex.split(span))


@pytest.mark.parametrize(
    "line",
    [
        "gradwire bench kernels --nothing",
        "gradwire lab run --hosts 4 -- python nothing.py",
        "make nothing",
        "make demo NOTHING=1",
        "OMP_NUM_THREADS=1 python benchmarks/sparse/main.py --nothing > out",
        "torchrun --nothing train.py",
        "nothing",
    ],
)
def test_a_command_that_is_none_is_found(line: str) -> None:
    (command,) = commands(line)
    with pytest.raises(AssertionError):
        check(command)


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), f"{page}: {link}"
        if anchor:
            found = anchors(target.resolve().relative_to(ROOT).as_posix())
            assert anchor in found, f"{page}: {link}"


RUN = [
    page for page in PAGES
    if page not in (EXCERPTS, NAMESPACES)
    and not page.startswith(("benchmarks/", "contrib/", "recipes/"))
    and any(block.language in ("python", "console") for block in blocks(page))
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The reader's folder: a checkout, with files of the reader's own that pages mention."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "train.py").write_text("print('trained')\n")
    job = (ROOT / "examples" / "parallel.toml").read_text(encoding="utf-8")
    (tmp_path / "small.toml").write_text(job.replace("dp = 32", "dp = 4"))
    return tmp_path


@pytest.mark.parametrize("page", RUN)
def test_every_block_runs(page: str, two: Ranks, folder: Path) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ran = two.run(doc_run.run, page, str(folder), store.port, timeout_seconds=240)
    assert ran[0] > 0 or page.startswith("docs/design/"), "these name commands of hours"
    if page in doc_run.TOGETHER:
        two.close()  # pages end process groups and leave handles: the next one begins anew


@pytest.mark.lab
@pytest.mark.skipif(available().mode == "none", reason=available().reason)
def test_every_block_with_a_network_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    for block in blocks(NAMESPACES):
        if block.language == "python":
            exec(compile(block.text, block.place, "exec"), {})


def test_every_file_of_settings_is_read() -> None:
    """A block is a cluster that `gradwire plan` reads, or the file that its first line names."""
    for page in PAGES:
        for block in blocks(page):
            if block.language == "toml":
                named = re.match(r"# (examples/[\w.]+)", block.text)
                if named:
                    shown = (ROOT / named[1]).read_text(encoding="utf-8")
                    assert tomllib.loads(block.text) == tomllib.loads(shown), block.place
                else:
                    assert Cluster.from_toml(block.text).world == 128, block.place


# -- excerpts ------------------------------------------------------------------------------------

SECTIONS = dict(
    re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text_of(EXCERPTS), re.DOTALL | re.MULTILINE)
)


def lines(text: str) -> list[str]:
    return [stripped for line in text.splitlines() if (stripped := line.strip())]


@pytest.mark.parametrize("section", SECTIONS)
def test_snippets_and_imports_are_those_of_the_example(section: str) -> None:
    """A page shows lines of the example, which is run, in the example's order."""
    (example,) = re.findall(r"`examples/(\w+\.py)`", SECTIONS[section])
    source = lines((ROOT / "examples" / example).read_text(encoding="utf-8"))
    imports = re.findall(r"`(from gradwire[^`]*)`", SECTIONS[section])
    snippets = re.findall(r"^```python\n(.*?)^```", SECTIONS[section], re.DOTALL | re.MULTILINE)
    assert snippets
    assert imports
    assert set(imports) <= set(source)
    place = 0
    for line in lines("".join(snippets)):
        assert line in source[place:], f"{example} lacks, or has elsewhere: {line}"
        place += source[place:].index(line) + 1
