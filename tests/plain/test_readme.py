"""The README: it shows what the demo prints, and what it says of us is so."""

import re

import pytest
from support import ROWS, refusals, unsupported_forms

import ringloom as rl
from repository import ROOT
from ringloom.cli import COMMANDS, command_of, main
from ringloom.simulator.hardware import presets
from sampling import square

README = (ROOT / "README.md").read_text()
OTHERS = (ROOT / "docs/other_libraries.md").read_text()


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


def test_the_demo_writes_the_page_that_the_readme_tells_of() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\ndemo:")[2].partition("\n\ntest:")[0]
    assert "ringloom report" in recipe
    assert "-o report.html" in recipe
    assert "`report.html`" in README


def test_commands_answer_in_the_forms_that_are_said() -> None:
    said = re.search(r"Every command takes `--json`; (.*?)\s+also `--csv`", README, re.DOTALL)
    assert said
    forms = {name: {o for p in command_of(name).params for o in p.opts} for name in COMMANDS}
    assert all("--json" in options for options in forms.values())
    assert re.findall(r"`(\w+)`", said[1]) == [n for n in sorted(forms) if "--csv" in forms[n]]


def test_every_schedule_takes_every_mask_and_is_written_for_both_frameworks() -> None:
    """The support page tries every cell."""
    assert f"| **ringloom** | {len(rl.SCHEDULES)} with parameters" in OTHERS
    assert f"{len(rl.SCHEDULES)} schedules with parameters" in README
    assert f"on {len(presets())} hardware presets" in README
    cells = square(list(rl.SCHEDULES), ROWS, every=len(ROWS))
    assert {schedule for schedule, _ in cells} == rl.SCHEDULES.keys()
    for schedule, row in cells:
        assert refusals(schedule, row).keys() == unsupported_forms(row), (schedule, row)
