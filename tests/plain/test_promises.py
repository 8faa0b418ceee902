"""Each promise of the documentation names tests that exist."""

import ast
import re
from pathlib import Path

import pytest

from repository import ROOT

PAGES = [page for page in (ROOT / "docs/exactness.md", ROOT / "SECURITY.md") if page.exists()]
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def promises(text: str) -> list[str]:
    """Returns the rows of the table that names tests, without its head."""
    table = re.search(r"^\|[^\n]*\| tests \|\n\|[-|]+\n((?:\|[^\n]*\n)+)", text, re.MULTILINE)
    return table[1].splitlines() if table else []


def unheld(text: str) -> list[str]:
    """Returns the promises that name no test, or one that there is not."""
    return [row for row in promises(text) if not all_exist(TEST.findall(row))]


def all_exist(tests: list[tuple[str, str]]) -> bool:
    return bool(tests) and all(name in names_in(ROOT / file) for file, name in tests)


def names_in(path: Path) -> set[str]:
    """Returns the functions of a file; none if there is no file."""
    body = ast.parse(path.read_text(encoding="utf-8")).body if path.exists() else []
    return {node.name for node in body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_promise_is_held_by_tests(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert promises(text)
    assert unheld(text) == []


@pytest.mark.parametrize(
    "wrong",
    ["", "`tests/plain/test_promises.py::test_nothing`", "`tests/plain/nowhere.py::promises`"],
)
def test_a_promise_that_nothing_holds_is_noticed(wrong: str) -> None:
    right = "`tests/plain/test_promises.py::promises`"
    head = "| promise | tests |\n|---|---|\n"
    assert unheld(f"{head}| kept | {right} |\n") == []
    assert unheld(f"{head}| kept | {right} |\n| broken | {right * bool(wrong)} {wrong} |\n")
