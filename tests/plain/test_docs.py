"""The documentation's examples hold; its pages and pictures are what code makes them."""

import doctest
import importlib
import re
import shlex
from pathlib import Path

import pytest
from docstrings import as_rst
from from_code import PAGES, command_line, hardware
from links import broken_links
from questions import SITUATIONS, output
from support import IRREGULAR, layouts, loops_by_workload, matrix, program_length, programs

import ringloom as rl
from repository import ROOT
from ringloom.cli import COMMANDS, command_of
from ringloom.codegen import TARGETS
from sampling import square

DOCS = ROOT / "docs"

# ---- examples


def modules() -> list[str]:
    """Every module of ours with an example in it."""
    names = ("planner", "simulator", "codegen", "runtimes", "ringloom")
    paths = (path for name in names for path in sorted((ROOT / name).rglob("*.py")))
    pages = [path.relative_to(ROOT) for path in paths if ">>> " in path.read_text()]
    return [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in pages]


@pytest.mark.parametrize("name", modules())
def test_the_examples_of_a_module_hold(name: str) -> None:
    outcome = doctest.testmod(importlib.import_module(name))
    assert outcome.attempted
    assert not outcome.failed


EXAMPLES = [p for p in sorted(DOCS.glob("*.md")) if "\n>>> " in p.read_text()]


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.stem)
def test_the_examples_of_a_page_print_what_they_show(page: Path) -> None:
    outcome = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert outcome.attempted
    assert not outcome.failed


# ---- pages and pictures from code


def test_constants_of_presets_stand_with_their_units() -> None:
    page = "\n".join(hardware())
    assert "| `intra.alpha` | 7e-06 | s | " in page
    assert "| `intra.bandwidth` | 3.7e+11 | bytes/s, one way | " in page


def test_every_command_and_option_is_on_its_page() -> None:
    page = "\n".join(command_line())
    for name in COMMANDS:
        command = command_of(name)
        section = page.partition(f"## `ringloom {name}`\n")[2].partition("\n## ")[0]
        assert section, name
        options = [o for p in command.params for o in p.opts if o.startswith("--")]
        assert all(f"`{option}`" in section for option in options), name


def test_twelve_questions_have_short_answers_that_run() -> None:
    assert [len(asked) for asked in SITUATIONS.values()] == [2] * 6
    for question in (q for asked in SITUATIONS.values() for q in asked):
        lines = question.answer.splitlines()
        assert len(lines) == 1 if question.is_command else len(lines) <= 5, question.text
        if "compare" not in question.answer:  # those are run when the page is built
            assert output(question).strip()
        elif question.is_command:
            _, name, *words = shlex.split(question.answer)
            command_of(name).make_context(name, words).close()


def test_a_hole_is_on_the_page_with_its_reason_and_none_goes_undeclared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = "\n".join(matrix(["ring", "tree"], ["full", "causal"]))
    assert "| `jax` | all 2 | all 2 |" in page
    assert "| `jax --dynamic` | all 2 | full |" in page
    assert "`jax --dynamic`: A compiled program sends fixed messages" in page
    assert "`groups` assigns each document" in "\n".join(layouts())
    monkeypatch.setattr("support.PARTIAL_FORMS", {})
    with pytest.raises(AssertionError, match=r"ring, causal: .*for the mask full.* but declared"):
        list(matrix(["ring"], ["causal"]))


@pytest.mark.parametrize(
    ("schedule", "mask", "target"),
    square([*rl.SCHEDULES], ["causal", "full"], [*TARGETS], every=4),
)
def test_programs_are_loops_or_say_why_not(schedule: str, mask: str, target: str) -> None:
    assert (program_length(schedule, mask, target) > 0) == (schedule not in IRREGULAR)


def test_what_is_by_tables_has_to_be_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "* `tree`: Each level" in "\n".join(programs(["ring"]))
    monkeypatch.setattr("support.IRREGULAR", {})
    with pytest.raises(AssertionError, match="tree, full, torch: tables"):
        program_length("tree", "full", "torch")


def test_the_page_says_for_which_workloads_programs_are_loops_and_why_not_for_others() -> None:
    page = "\n".join(loops_by_workload(["ulysses", "tree"]))
    assert re.search(r"\| `ulysses` \| \d+, \d+ \| \d+, \d+ \| tables, tables \|\n", page)
    assert "**heads that the ranks do not divide** Ranks get slices of heads" in page
    assert "`tree`" not in page


def test_every_public_name_is_in_the_reference() -> None:
    page = (DOCS / "reference" / "python.md").read_text()
    lacking = [n for n in rl.__all__ if f"ringloom.{n}\n" not in page and f"`rl.{n}`" not in page]
    assert lacking == []


def test_every_page_has_its_place() -> None:
    listed = (DOCS / "index.md").read_text() + (DOCS / "lessons" / "index.md").read_text()
    pages = [path for path in DOCS.rglob("*.md") if "generated" not in path.parts]
    stems = {path.stem for path in pages} - {"index"}
    assert {stem for stem in stems if f"{stem}\n" not in listed} == set()
    assert all(f"generated/{name}\n" in listed for name in PAGES)


def test_a_picture_is_drawn_by_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "pictures"))
    from draw import pictures

    drawn = pictures()
    assert len(drawn) >= 9
    assert set(drawn) == set((DOCS / "pictures").glob("*.svg"))
    for path, text in drawn.items():
        assert path.read_text() == text, f"{path.name}: run docs/pictures/draw.py"


def test_every_picture_shown_is_there() -> None:
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]
    shown = {p: re.findall(r"!\[.+?\]\((.+?)\)", p.read_text()) for p in pages}
    assert sum(map(len, shown.values())) >= 11
    assert [f for p, files in shown.items() for f in files if not (p.parent / f).exists()] == []


# ---- the site


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<p id="x"><a href="b.html#y">1</a><a href="#x">2</a>')
    (tmp_path / "b.html").write_text(
        '<a href="a.html#z">3</a><img src="no.svg"><a href="http://x">'
    )
    assert broken_links(tmp_path) == ["a.html: b.html#y", "b.html: a.html#z", "b.html: no.svg"]
    with pytest.raises(ValueError, match="no page"):
        broken_links(tmp_path / "nothing")


def test_docstrings_keep_their_drawings_and_say_what_is_code() -> None:
    lines = ["Pass `x` to f_ or *this*.", "", "a  -->  b", "", ">>> 1 + 1", "2"]
    assert as_rst(lines) == [
        "Pass ``x`` to f\\_ or \\*this\\*.",
        "",
        "::",
        "",
        "    a  -->  b",
        "",
        ">>> 1 + 1",
        "2",
        "",
    ]
