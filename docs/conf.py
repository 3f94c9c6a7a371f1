"""The site, as `make docs` builds it: pages are plain Markdown, the reference is docstrings.

Pages of the whole repository are pages of the site, so that links between them lead there. Nothing
is fetched, neither to build it nor to look at it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import gradwire  # noqa: E402
from building import docstrings, names, pages, strategies  # noqa: E402

project = "gradwire"
version = release = gradwire.__version__
author = copyright = "the authors of gradwire"
root_doc = "docs/index"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
include_patterns = pages.pages()
nitpick_ignore_regex = [("py:class", ".*")]  # of types, most are torch's; of ours all are checked
suppress_warnings = ["ref.python"]  # "bytes" is a field of several classes, and a type
myst_heading_anchors = 4
napoleon_numpy_docstring = False
napoleon_use_param = False
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
smartquotes_action = "D"  # dashes alone: what stands in quotes is often code
python_maximum_signature_line_length = 80
add_module_names = False
html_theme = "furo"
html_title = "gradwire"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["strategies.js"]
html_additional_pages = {"index": "to_index.html"}
templates_path = ["_templates"]
html_copy_source = False
html_show_sphinx = False
html_theme_options: dict[str, Any] = {"navigation_with_keys": True}


def setup(app: Sphinx) -> dict[str, bool]:
    """Where Sphinx asks."""
    app.connect("source-read", read)
    app.connect("autodoc-process-docstring", translate, priority=100)  # before napoleon
    app.connect("autodoc-process-signature", shorten)
    app.connect("doctree-read", link)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def read(_app: Sphinx, docname: str, content: list[str]) -> None:
    """A page, with what the site adds to it."""
    content[0] = strategies.with_table(pages.as_sphinx_reads(f"{docname}.md", content[0]))


def translate(
    _app: Sphinx, _what: str, _name: str, _item: object, _options: object, lines: list[str]
) -> None:
    """A docstring, in place."""
    lines[:] = docstrings.translated(lines)


MADE_ELSEWHERE = ("gradwire.Handle", "gradwire.training.recording.Recording")
"""Classes that nobody calls."""


def shorten(
    _app: Sphinx, _what: str, name: str, _item: object, _options: object, *_signature: str | None
) -> tuple[str, str] | None:
    """No arguments where readers give none."""
    return ("", "") if name in MADE_ELSEWHERE else None


def link(app: Sphinx, doctree: nodes.document) -> None:
    """Names of the reference lead there, wherever text speaks of them."""
    for code in list(doctree.findall(nodes.literal)):
        inside_link = isinstance(code.parent, nodes.reference | pending_xref | nodes.title)
        if not inside_link and (name := names.meant(code.astext())):
            page = app.env.current_document.docname
            reference = pending_xref(
                "", code.deepcopy(), refdomain="py", reftype="obj", reftarget=name,
                refexplicit=True, refwarn=True, refdoc=page,
            )  # fmt: skip
            code.replace_self(reference)
