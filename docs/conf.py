"""Configures Sphinx: Markdown pages, generated pages, docstrings."""

import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS.parent), str(DOCS)]

from docstrings import as_rst
from from_code import PAGES
from outputs import with_outputs
from situations import find_unsupported, situations
from sphinx.errors import ExtensionError
from stored import load_text

import ringloom

CHOOSE_PAGE = DOCS / "how-to/choose.md"
INCLUDED = {"situations": situations}  # generated parts of pages written by hand

project = "ringloom"
author = "the ringloom authors"
project_copyright = author
release = version = ringloom.__version__

smartquotes = False  # -- is an option here, not a dash
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
# The copy button copies commands without prompts and without output.
copybutton_selector = ", ".join(
    f"div.highlight-{kind} pre" for kind in ("console", "python", "py", "bash", "toml", "json")
)
copybutton_prompt_text, copybutton_prompt_is_regexp = r">>> |\.\.\. |\$ ", True
copybutton_line_continuation_character = "\\"
exclude_patterns = ["_build", "examples", *(f"generated/{name}.md" for name in INCLUDED)]
myst_heading_anchors = 3
autodoc_typehints = "none"  # signatures contain them, and their links would leave these pages
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
toc_object_entries = False
nitpicky = True

html_theme = "furo"
html_title = "ringloom"
html_static_path = ["static"]
html_css_files = ["wide.css"]
html_show_sphinx = False
html_copy_source = False
pygments_style = "friendly"
html_theme_options = {"navigation_with_keys": True}


def write_pages(app: Any) -> None:
    """Writes the generated pages that have changed.

    Raises ExtensionError if choose.md recommends a schedule that `ringloom compare` does not.
    """
    folder = DOCS / "generated"
    folder.mkdir(exist_ok=True)
    for name, lines in (PAGES | INCLUDED).items():
        path, text = folder / f"{name}.md", load_text(name, lines)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    names = find_unsupported(
        CHOOSE_PAGE.read_text(encoding="utf-8"), load_text("situations", situations)
    )
    if names:
        raise ExtensionError(f"{CHOOSE_PAGE} recommends {names}, but `compare` does not")


def show_outputs(app: Any, docname: str, source: list[str]) -> None:
    """Adds the output of a page's commands below them."""
    page = DOCS / f"{docname}.md"
    if page.exists() and "generated" not in page.parts and "lessons" not in page.parts:
        source[0] = with_outputs(page)


def convert_docstring(
    app: Any, kind: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """Converts a docstring from plain text to reStructuredText."""
    lines[:] = as_rst(lines)


def setup(app: Any) -> None:
    """Connects these functions to the events of Sphinx."""
    app.connect("builder-inited", write_pages)
    app.connect("source-read", show_outputs)
    app.connect("autodoc-process-docstring", convert_docstring)
