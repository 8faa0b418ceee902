"""The README and the pages: their code runs, their output is what is printed."""

import doctest
import re
from pathlib import Path

import numpy as np
import pytest

import ringloom as rl
from planner.schedules import SCHEDULES, Schedule
from ringloom.cli import main
from runtimes.validation import check

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def code_blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def demo() -> list[str]:
    """The command that `make demo` runs, as the Makefile says it."""
    makefile = (ROOT / "Makefile").read_text()
    recipe = re.search(r"\$\(BIN\)/ringloom (.*?)\n\n", makefile, re.DOTALL)
    assert recipe is not None
    return recipe[1].replace("\\\n", " ").split()


def test_the_output_shown_is_what_the_demo_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(demo()) == 0
    printed = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())
    assert printed.strip() == code_blocks("text")[0].strip()


def test_the_python_shown_runs(capsys: pytest.CaptureFixture[str]) -> None:
    exec(code_blocks("python")[0], {})
    assert re.match(r"\d+% idle, \d+\.\d times the lower bound\n", capsys.readouterr().out)


def test_the_commands_shown_run(capsys: pytest.CaptureFixture[str]) -> None:
    lines = code_blocks("console")[0].replace("\\\n", " ").splitlines()
    assert lines
    for line in lines:
        words = re.findall(r'"[^"]*"|\S+', line.split("#")[0])
        assert main([word.strip('"') for word in words[2:]]) == 0


def test_the_schedule_shown_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    scope: dict = {"Schedule": Schedule}
    exec(code_blocks("python")[1], scope)
    monkeypatch.setitem(SCHEDULES, "tokenring", eval(code_blocks("python")[2], scope))
    for mask in (rl.Full(), rl.Causal(), rl.Documents((10, 20, 7)) & rl.Window(6, 2)):
        work = rl.Workload(seq=37, heads=4, kv_heads=2, head_dim=8, mask=mask, dtype="float64")
        for ranks in (1, 4, 5):
            assert check(rl.plan("tokenring", work, ranks, pass_="both")).exact


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda p: p.name)
def test_the_examples_of_a_page_print_what_they_show(page: Path) -> None:
    found = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert found.attempted
    assert not found.failed


def test_the_picture_is_drawn_from_the_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "pictures")
    from who_waits import picture

    assert picture() == (ROOT / "docs" / "pictures" / "who_waits.svg").read_text()


def test_the_examples_of_the_front_door_hold() -> None:
    found = doctest.testmod(rl)
    assert found.attempted
    assert not found.failed
    assert np.isfinite(rl.simulate(rl.plan("ring", rl.Workload(seq=64), 2), "h100").makespan)
