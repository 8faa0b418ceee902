"""Help, examples, tables as CSV, completion: what the command line says of itself."""

import contextlib
import csv
import os
import re
import shlex
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import get_completion_class

import ringloom as rl
from command_line import CommandLine
from repository import ROOT
from ringloom.cli import COMMANDS as ALL
from ringloom.cli import GROUPS, cli, command_of, examples, first_sentence
from ringloom.cli.synonyms import SYNONYMS
from sampling import square

SMALL = ["--ranks", "4", "--seq", "256", "--heads", "4", "--head-dim", "16"]


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_saying_hello_loads_nothing_that_takes_long(option: str) -> None:
    heavy = ["networkx", "numpy", "rich", "sympy"]
    code = f"import sys; from ringloom.cli import main; assert main([{option!r}]) == 0\n"
    code += f"assert not set(sys.modules) & set({heavy})"
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert run.returncode == 0, run.stderr


def test_help_lists_every_command_in_a_group_and_in_one_line(
    ringloom: CommandLine,
) -> None:
    shown = ringloom.narrow("--help")
    for group, names in GROUPS.items():
        assert f"\n{group}:\n" in shown
        for name in names:
            (line,) = (line for line in shown.splitlines() if line.split()[:1] == [name])
            assert line.endswith(first_sentence(name))
    assert f"Example:\n    {examples('compare')[0]}" in shown


@pytest.mark.parametrize("name", ALL)
def test_every_option_has_a_sentence_and_every_help_ends_with_examples(
    name: str, ringloom: CommandLine
) -> None:
    options = [p for p in command_of(name).params if isinstance(p, click.Option)]
    assert [option.name for option in options if not option.help] == []
    assert examples(name)
    assert ringloom.narrow(name, "--help").rstrip().endswith(examples(name)[-1])


def test_a_mistyped_command_is_told_the_one_like_it(ringloom: CommandLine) -> None:
    assert "Did you mean 'compare'?" in ringloom.refused("comapre")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--gpus", "'--ranks'"),
        ("--gpu", "'--ranks' or '--hardware'"),
        ("--seq_len", "'--seq'"),
        ("--kv_heads", "'--kv-heads'"),
        ("--num-heads", "'--heads'"),
        ("--hed-dim", "'--head-dim'"),
        ("--causal", "'--mask'"),
    ],
)
def test_an_option_by_the_name_that_others_give_it_is_told_ours(
    typed: str, meant: str, ringloom: CommandLine
) -> None:
    said = ringloom.refused("compare", typed, "8")
    assert said.endswith(f"No such option '{typed}'. Did you mean {meant}?\n")


def test_options_that_are_suggested_exist_and_are_not_their_own_synonyms() -> None:
    every = {option for name in ALL for p in command_of(name).params for option in p.opts}
    words = {f"--{word}" for typed in SYNONYMS.values() for word in typed.split()}
    assert SYNONYMS.keys() <= every
    assert not words & {o for p in command_of("compare").params for o in p.opts}


@pytest.mark.parametrize("example", [line for name in ALL for line in examples(name)])
def test_examples_are_commands_with_options_that_exist(example: str) -> None:
    words = shlex.split(re.sub(r"source <\((.*)\)| >.*", r"\1", example))
    assert words[0] == "ringloom"
    command_of(words[1]).make_context(words[1], words[2:]).close()


def cell(value: Any) -> str:
    """A value of a JSON row, as a cell of a CSV file has it."""
    return (
        " ".join(map(str, value))
        if isinstance(value, list)
        else ""
        if value is None
        else str(value)
    )


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (["compare", *SMALL, "--schedules", "ring,zigzag"], "rows"),
        (["schedules"], "schedules"),
        (["hardware"], "hardware"),
        (["hardware", "h100"], "constants"),
    ],
)
def test_csv_has_the_rows_of_json(command: list[str], key: str, ringloom: CommandLine) -> None:
    rows = ringloom.json(*command)[key]
    table = list(csv.DictReader(StringIO(ringloom(*command, "--csv"))))
    assert len(table) == len(rows) > 0
    for ours, theirs in zip(table, rows, strict=True):
        flat = {name: value for name, value in theirs.items() if not isinstance(value, dict)}
        assert {name: ours[name] for name in flat} == {n: cell(v) for n, v in flat.items()}
        assert not {*"[]{}"} & {*"".join(ours.values())}  # of Python
    assert "…" not in ringloom(*command)  # nothing is cut off
    assert "--json and --csv cannot be combined" in ringloom.refused(*command, "--csv", "--json")


def test_hardware_says_what_is_assumed(ringloom: CommandLine) -> None:
    shown = ringloom("hardware", "h100")
    constants = rl.hardware("h100").constants
    assert shown.count("assumed") >= sum(not one.calibrated for one in constants.values()) > 0
    assert all(name in shown for name in constants)
    ringloom.refused("hardware", "abacus")


def test_a_constant_is_shown_with_its_unit(ringloom: CommandLine) -> None:
    lines = [line.split() for line in ringloom("hardware", "h100").splitlines()]
    shown = {line[0]: line[2] for line in lines if len(line) > 2}
    units = {row["constant"]: row["unit"] for row in ringloom.json("hardware", "h100")["constants"]}
    assert {name: unit.split()[0] for name, unit in units.items()}.items() <= shown.items()
    assert units["intra.bandwidth"] == "bytes/s, one way"
    assert units["attention.forward"] == "share of peak"


def test_a_preset_is_written_to_be_edited(ringloom: CommandLine, tmp_path: Path) -> None:
    printed = ringloom("hardware", "h100", "-o", file := str(tmp_path / "mine.toml"))
    assert printed.endswith(f"written to {file}\n")
    assert rl.hardware(file) == rl.hardware("h100")
    assert "-o requires NAME" in ringloom.refused("hardware", "-o", file)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands(shell: str, ringloom: CommandLine) -> None:
    script = ringloom("completion", shell)
    kind = get_completion_class(shell)
    assert kind is not None
    source = kind(cli, {}, "ringloom", "_RINGLOOM_COMPLETE").source()
    assert script == source.removesuffix("\n") + "\n"  # not wrapped
    word = "comp" if shell == "fish" else "1"
    asked = {"COMP_WORDS": "ringloom comp", "COMP_CWORD": word}
    asked["_RINGLOOM_COMPLETE"] = f"{shell}_complete"
    program = "from ringloom.cli import main; main([])"
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | asked, capture_output=True, text=True
    )
    assert "compare" in done.stdout
    assert "completion" in done.stdout


def test_shells_complete_names_of_files_to_write() -> None:
    kind = get_completion_class("bash")
    assert kind is not None
    shell = kind(cli, {}, "ringloom", "_RINGLOOM_COMPLETE")
    for words in (["plan", "ring", "-o"], ["simulate", "ring", "--trace"], ["report", "-o"]):
        assert [item.type for item in shell.get_completions(words, "p")] == ["file"]


def test_commands_work_before_anything_else_is_imported() -> None:
    for name in ("compare", "report", "hardware"):
        program = f"from ringloom.cli import command_of; command_of({name!r})"
        subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


PLAIN = [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {}]
COLOURFUL = [
    ["--help"],
    ["compare", "--help"],
    ["compare", *SMALL, "--schedules", "ring,zigzag", "--check"],
    ["plan", "zigzag", *SMALL],
    ["fly"],
]


@pytest.mark.parametrize(("asked", "command"), square(PLAIN, COLOURFUL, every=3), ids=str)
def test_no_escape_code_where_none_is_wanted(asked: dict[str, str], command: list[str]) -> None:
    """On a terminal that has or wants no colours, and in a pipe."""
    usual = {"TERM": "xterm-256color", "COLUMNS": "100", "PYTHONPATH": str(ROOT)}
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    words = [sys.executable, "-m", "ringloom", *command]
    said = on_terminal(words, environment | usual | asked) if asked else piped(words, environment)
    assert said.strip()
    assert "\x1b" not in said


def on_terminal(words: list[str], environment: dict[str, str]) -> str:
    """Returns what a command writes to a terminal."""
    inner, outer = os.openpty()
    with subprocess.Popen(words, env=environment, stdout=outer, stderr=outer, cwd=ROOT) as run:
        os.close(outer)
        said = b""
        with contextlib.suppress(OSError):  # the end of what a terminal says
            while part := os.read(inner, 1 << 16):
                said += part
        run.wait()
    os.close(inner)
    return said.decode()


def piped(words: list[str], environment: dict[str, str]) -> str:
    """Returns what a command writes to pipes."""
    run = subprocess.run(words, env=environment, capture_output=True, text=True, cwd=ROOT)
    return run.stdout + run.stderr


def test_a_terminal_has_colours() -> None:
    """So that the test before this one looks at what has some."""
    words = [sys.executable, "-m", "ringloom", "compare", *SMALL, "--schedules", "ring,zigzag"]
    environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    assert "\x1b[1;32m" in on_terminal(words, environment | {"TERM": "xterm-256color"})


def test_who_reads_may_have_enough() -> None:
    """A pipe that is closed early, as by head, is no error that a command tells."""
    emit = ["emit", "torch", "zigzag", *SMALL]
    for command in (emit, [*emit, "-o", "/dev/stdout"], ["schedules", "--json"]):
        words = [sys.executable, "-m", "ringloom", *command]
        with subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
        ) as run:
            assert run.stdout is not None
            assert run.stderr is not None
            run.stdout.close()
            assert run.stderr.read() == b""
        assert run.returncode == 141
