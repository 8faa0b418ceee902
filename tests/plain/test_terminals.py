"""Hostile texts as they are shown: no control characters, no formulas, no endless quotes."""

import csv
import json
import os
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

import ringloom as rl
from command_line import CommandLine
from ringloom.cli.output import csv_text
from ringloom.csv_rows import safe_cell
from ringloom.planner import files, given
from ringloom.planner.errors import RingloomError, printable, safe_text
from ringloom.simulator.scenario import scenario_file
from ringloom.sweeps import results

SMALL = ["--ranks", "4", "--seq", "256", "--heads", "4", "--head-dim", "16"]
HOSTILE = "\x1b[31m\x07\x9b\u202e\ud800\x7f"
LONG = "9" * 5000


def plain(text: str) -> bool:
    return all(c.isprintable() for line in text.split("\n") for c in line)


def test_messages_show_control_characters_as_escapes_and_cut_endless_words() -> None:
    said = str(RingloomError(f"no {HOSTILE}: {LONG}"))
    assert plain(said)
    assert said.startswith(r"no \x1b[31m\x07\x9b\u202e\ud800\x7f: 999")
    assert len(said) < 250
    assert safe_text("as it is, however long " * 99) == "as it is, however long " * 99
    assert printable("a\n\tb é ×") == "a\n\tb é ×"


WORDS = [
    ["plan", HOSTILE, *SMALL],
    ["plan", f"ring:layout={HOSTILE}", *SMALL],
    ["plan", f"{HOSTILE}.json"],
    ["plan", "ring", *SMALL, "--mask", HOSTILE],
    ["plan", "ring", *SMALL, "--mask", f"documents@{HOSTILE}"],
    ["plan", "ring", *SMALL, f"--{HOSTILE}", "1"],
    ["plan", "ring", *SMALL, "-o", f"/nowhere/{HOSTILE}"],
    ["compare", *SMALL, "--hardware", HOSTILE],
    ["compare", *SMALL, "--topology", HOSTILE],
    ["simulate", "ring", *SMALL, "--straggler", f"{HOSTILE}=2"],
    ["plan", "ring", "--ranks", LONG, "--seq", "9"],
    ["plan", "ring", "--ranks", LONG[:4000], "--seq", "9"],
    ["plan", "ring", "--ranks", "4", "--seq", LONG],
    ["plan", "ring", *SMALL, "--mask", f"prefix:{LONG}"],
    ["plan", LONG, *SMALL],
    ["compare", *SMALL, "--hardware", LONG],
    ["compare", *SMALL, "--topology", LONG],
    ["compare", *SMALL, "--topology", f"torus:{LONG}"],
    ["compare", *SMALL, "--topology", "nodes:nics=999999999"],
    ["compare", *SMALL, "--scenario", LONG],
    ["simulate", "ring", *SMALL, "--straggler", f"0={LONG}"],
    ["simulate", "ring", *SMALL, "--straggler", f"{LONG}=2"],
    ["simulate", "ring", *SMALL, "--slow-link", f"{LONG}-1=0.5"],
    ["simulate", "ring", *SMALL, "--placement", LONG],
    ["simulate", "ring", *SMALL, "--recv-buffers", LONG],
    ["simulate", "ring", *SMALL, "--launch-latency", LONG[:400]],
    ["plan", "ring", *SMALL, "-o", "a\0b"],
    ["plan", "a\0b", *SMALL],
    ["report", *SMALL, "-o", "a\0b"],
    ["reproduce", "striped", "--rows", "a\0b"],
    ["fit", "a\0b"],
]


@pytest.mark.parametrize("words", WORDS, ids=range(len(WORDS)))
def test_hostile_words_are_refused_in_one_plain_line(
    words: list[str], ringloom: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = ringloom.refused(*words)
    assert plain(said)
    assert "9" * 201 not in said


SCENARIOS = ["share", "chunk", "launch", "buffers"]


@pytest.mark.parametrize("name", SCENARIOS)
def test_numbers_of_400_digits_are_refused_by_scenarios(name: str, tmp_path: Path) -> None:
    path = tmp_path / "scenario.json"
    for text in (f'{{"{name}": {10**400}}}', f'{{"{name}": -{10**400}}}'):
        path.write_text(text)
        with pytest.raises(RingloomError, match=name):
            scenario_file(path)


@pytest.mark.parametrize(
    "value", ['{"speeds": {"3": N}}', '{"links": {"0-1": N}}', '{"placement": [N]}']
)
def test_numbers_of_400_digits_are_refused_inside_scenarios(
    value: str, tmp_path: Path, ringloom: CommandLine
) -> None:
    path = tmp_path / "scenario.json"
    path.write_text(value.replace("N", "1" + "0" * 400))
    ringloom.refused("simulate", "ring", *SMALL, "--scenario", str(path))


@pytest.mark.parametrize("at", range(4))
def test_numbers_of_400_digits_are_refused_by_topologies_and_hardware(
    at: int, tmp_path: Path
) -> None:
    row = [0, 1, 1e9, 1e-6]
    row[at] = 10**400
    (tmp_path / "links.json").write_text(json.dumps({"links": [row, [0, 2, 1e9]]}))
    with pytest.raises(RingloomError):
        rl.topology(str(tmp_path / "links.json"), "h100", 3)
    with pytest.raises(RingloomError, match="changes must be numbers by constant"):
        rl.hardware("h100").changed({"intra.alpha": 10**400})


@pytest.mark.parametrize("name", ["\ud800", "\x1b[0m", "x" * 201, "a\nb", "\u202e"])
def test_names_that_cannot_be_shown_are_refused_where_files_are_read(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(RingloomError, match=r"one line of printable|at most 200 char"):
        given.require_name("it", name)
    document = json.loads(files.dumps(rl.plan("ring", rl.Workload(seq=8, heads=2), 2)))
    document["plans"][0]["name"] = name
    with pytest.raises(rl.PlanError, match="name"):
        files.loads(json.dumps(document))


def test_names_of_plans_and_files_do_nothing_to_a_terminal(
    tmp_path: Path, ringloom: CommandLine
) -> None:
    plan = replace(rl.plan("ring", rl.Workload(seq=8, heads=2), 2), name="a")
    path = tmp_path / os.fsdecode(b"\xff\x1b[31m.json")
    rl.save(plan, path)
    shown_text = ringloom("plan", str(path), "-o", str(path))
    assert plain(shown_text)
    assert r"\x1b[31m" in "".join(shown_text.split())


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_no_cell_of_a_table_is_a_formula(text: str) -> None:
    assert safe_cell(text).startswith("'")
    assert [safe_cell(value) for value in ("-", "a=1", -1, 2.5, None, "")] == [
        *("-", "a=1", -1, 2.5, None, "")
    ]


def test_tables_quote_what_a_spreadsheet_would_compute(tmp_path: Path) -> None:
    row = {"hardware": "=1+1", "schedule": "ring", "seq": -8, "makespan_s": 1.0, "note": "@x"}
    (*_, named, _) = results.write([row], ["hardware", "schedule", "seq"], tmp_path)
    for table in (csv_text([row]), named.read_text()):
        names, cells = csv.reader(StringIO(table))
        written = dict(zip(names, cells, strict=True))
        assert written | {"makespan_s": "", "reason": ""} == {
            "hardware": "'=1+1",
            "schedule": "ring",
            "seq": "-8",
            "note": "'@x",
            "makespan_s": "",
            "reason": "",
        }


@pytest.mark.parametrize("columns", ["0", "1", "-3", "", "²", "many", "9" * 30])
def test_tables_are_printed_whatever_columns_says(
    columns: str, ringloom: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:  # pytest itself reads COLUMNS when it prints a result
        patch.setenv("COLUMNS", columns)
        words = "".join(ringloom("simulate", "ring", *SMALL).split())
    assert "ring:forwardof256tokens" in words
