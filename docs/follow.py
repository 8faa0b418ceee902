"""Runs a lesson up to its exercise, for you to continue:  python -i docs/follow.py ring

The names of the page are then defined; `check(answer)` says whether an answer is right. Without -i,
the whole page runs, including the solution.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pages import Block, blocks, execute

LESSONS = Path(__file__).parent / "lessons"


def lessons() -> list[Path]:
    """Returns the pages of the lessons, in order of their numbers."""
    return sorted(LESSONS.glob("[0-9]*.md"))


def split_lesson(page: Path) -> tuple[list[Block], list[Block]]:
    """Returns the python blocks before the solution, and those of the solution."""
    end = page.read_text(encoding="utf-8").partition("<details>")[0].count("\n")
    code = [block for block in blocks(page) if block.language == "python"]
    return [b for b in code if b.line <= end], [b for b in code if b.line > end]


def follow(
    page: Path, with_solution: bool, compiler: Callable[..., Any] = compile, **scope: Any
) -> dict[str, Any]:
    """Returns the namespace of a page after its blocks, with or without the solution."""
    scope |= {"__name__": "__lesson__"}
    lesson, solution = split_lesson(page)
    for block in [*lesson, *solution] if with_solution else lesson:
        execute(block, page, scope, compiler)
    return scope


if __name__ == "__main__":
    pages = [page for page in lessons() if sys.argv[1:] and sys.argv[1] in page.stem]
    if len(pages) != 1:
        sys.exit(f"name one lesson: {', '.join(page.stem for page in lessons())}")
    globals().update(follow(pages[0], with_solution=not sys.flags.interactive))
    print(f"{pages[0].stem}: every block ran")
