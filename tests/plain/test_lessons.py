"""The lessons: every block runs, prints what it shows; exercises tell right from wrong."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from follow import follow, lessons, split_lesson
from pages import blocks, execute

from assertions import Assertions
from repository import ROOT

PAGES = lessons()
WRONG: list[Any] = [lambda *_: 0, 0, 1, "ring", {}, lambda *_: None]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_lesson_runs_and_its_exercise_has_one_solution(page: Path) -> None:
    assertions = Assertions()
    scope = follow(page, with_solution=True, compiler=assertions.compile, **assertions.names)
    assert assertions.loose == [], "these lines hold whatever the values are"
    for wrong in WRONG:
        with pytest.raises((AssertionError, TypeError, ValueError)):
            scope["check"](wrong)
    scope["check"](scope["answer"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_lesson_derives_a_formula_and_draws_a_picture(page: Path) -> None:
    text = page.read_text()
    lesson, solution = split_lesson(page)
    code = "".join(block.text for block in lesson)
    assert "import sympy" in code
    assert "import ringloom as rl" in code
    assert code.count("assert") >= 3
    assert text.count("![") == 1
    assert "\ncheck(answer)" in solution[-1].text
    assert "\ncheck(answer)" not in code, "the solution belongs into the fold"


def test_there_are_nine_lessons_numbered_in_order() -> None:
    assert [page.stem.split("-")[0] for page in PAGES] == [str(n) for n in range(1, 10)]


def test_a_page_that_prints_something_else_fails(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n")
    (block,) = blocks(page)
    with pytest.raises(AssertionError, match=r"page.md:2 prints\n2"):
        execute(block, page, {})


def test_an_error_names_the_line_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("words\n\n```python\nx = 1\nassert x == 2\n```\n")
    (block,) = blocks(page)
    with pytest.raises(AssertionError) as caught:
        execute(block, page, {})
    assert caught.traceback[-1].lineno + 1 == 5


def test_a_reader_stands_before_the_exercise_with_the_names_of_the_page() -> None:
    root = ROOT
    asked = subprocess.run(
        [sys.executable, "-i", str(root / "docs" / "follow.py"), "ring"],
        input="print('answer' in globals())\ncheck(0)\n",
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert asked.stdout.splitlines() == ["2-ring: every block ran", "False"]
    assert "TypeError" in asked.stderr
