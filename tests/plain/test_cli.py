"""The command line: what it prints, what it refuses, and its exit status."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ringloom as rl
from command_line import CommandLine
from repository import ROOT
from ringloom.cli import main
from ringloom.rows import bound_multiple
from ringloom.runtimes import backends
from ringloom.runtimes.machine import RankError

SMALL = ["--ranks", "4", "--seq", "256", "--heads", "4", "--head-dim", "16"]
COMMANDS = [
    ["schedules"],
    ["plan", "zigzag", *SMALL],
    ["compare", *SMALL, "--hardware", "a100-nvlink"],
    ["simulate", "burst", *SMALL, "--pass", "both"],
    ["run", "ring", *SMALL, "--backend", "numpy", "--check"],
    ["run", "ring", *SMALL],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_json_is_one_object_and_nothing_else(command: list[str], ringloom: CommandLine) -> None:
    assert isinstance(ringloom.json(*command), dict)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_plain_output_fits_eighty_columns(command: list[str], ringloom: CommandLine) -> None:
    printed = ringloom.narrow(*command)
    assert printed.strip()
    assert not {"\x1b", "█"} & {*printed}  # neither colours nor bars through a pipe


BAD = [
    (["plan", "spiral", *SMALL], "unknown schedule 'spiral'"),
    (["plan", "striped:grain=-1", *SMALL], "grain takes a whole number"),
    (
        ["plan", "ring", "--ranks", "-3", "--seq", "64"],
        "--ranks must be a positive integer, not -3",
    ),
    (["plan", "ring", "--ranks", "3", "--seq", "-64"], "-64"),
    (["plan", "ring", "--ranks", "3"], "missing --seq"),
    (["plan", "ring", *SMALL, "--mask", "documents:100,100"], "256"),
    (["plan", "ring", *SMALL, "--mask", "dropout"], "not expressible"),
    (["plan", "ring", *SMALL, "--mask", "causal &"], "mask"),
    (["plan", "ring", *SMALL, "--mask", "documents@nowhere"], "nowhere"),
    (["plan", "ring", *SMALL, "--kv-heads", "3"], "cannot share 3 KV heads"),
    (["plan", "ring", *SMALL, "--dtype", "int8"], "int8"),
    (["plan", "ring", *SMALL, "-o", "/nowhere/plan.json"], "cannot write /nowhere/plan.json"),
    (["plan", "nowhere.json"], "nowhere.json"),
    (["compare", *SMALL, "--schedules", "ring,spiral"], "unknown schedule 'spiral'"),
    (["compare", *SMALL, "--schedules", ","], "--schedules lists no schedule"),
    (["compare", *SMALL, "--hardware", "abacus"], "a100-nvlink"),
    (["run", "ring", "--ranks", "2", "--seq", "1M"], "smaller --seq"),
    (["run", "ring", *SMALL, "--backend", "fortran"], "fortran"),
    (["emit", "fortran", "ring", *SMALL], "fortran"),
    (["emit", "torch", "ring", *SMALL, "-o", "/nowhere/ring.py"], "cannot write /nowhere/ring.py"),
    (["check", "nowhere.py"], "no file nowhere.py"),
    (["plan", "ring", *SMALL, "--mask", "full", "--mask", "causal"], "--mask is given 2 times"),
    (["simulate", "ring", *SMALL, "--overlap", "--no-overlap"], "--overlap is given 2 times"),
    (["fly"], "fly"),
    (["plan", "ring", "--wings", "2"], "--wings"),
    (["emit", "jax", "ring", *SMALL, "--sinks", "--dynamic"], "sinks yet; ordinary programs do"),
    (["emit", "torch", "ring", *SMALL, "--layer"], "--layer"),
    (
        ["emit", "torch", "ring", *SMALL, "--v-head-dim", "5", "--dynamic"],
        "torch programs that take tables do not support v_head_dim 5 with head_dim",
    ),
    (["plan", "ring", *SMALL, "--v-head-dim", "0"], "v_head_dim must be between 1 and"),
    (["compare", "zigzag", *SMALL], "give schedules as --schedules ring,zigzag"),
    (["plan", "ring", "zigzag", *SMALL], "unexpected extra argument (zigzag)\n"),
    (["plan", "ring", *SMALL, "--mask", "window"], "did you mean window:4096?"),
    (["plan", "ring", *SMALL, "--mask", "casual"], "did you mean causal?"),
    (["compare", *SMALL, "--memory", "80GB"], "'80GB' is not a valid number"),
    (["explore", "--port", "abc"], "'abc' is not a valid integer"),
    (["run", "ring", *SMALL, "--seed", "-1"], "-1 is not in the range x>=0"),
    (["check", "."], ". is a folder"),
    (["run", "ring", "--ranks", "8", "--seq", "64k"], "the limit is 4 GiB"),
    (["formula", "zigzg"], "no formulas for 'zigzg': did you mean 'zigzag'? choose one of ring"),
    (["plan", "allgather:keep=7", *SMALL], "allgather:keep must be 0 or 1, not 7"),
    (["plan", "pass-q:late=5", *SMALL], "pass-q:late must be 0 or 1, not 5"),
    (["plan", "head-chunks:ahead=2", *SMALL], "head-chunks:ahead must be 0 or 1, not 2"),
    (["plan", "ring", *SMALL, "-o", "-"], "cannot write '-': it is not a file name"),
    (["tables", "torch", "ring", *SMALL, "-o", "-"], "cannot write '-': it is not a file name"),
    (["report", *SMALL, "-o", "."], "File '.' is a directory"),
    (["figures", "-o", "-"], "cannot write '-': it is not a file name"),
    (["report", "-o", "/nowhere/page.html"], "cannot write /nowhere/page.html: No such"),
    (["run", "nothing", "--trace", "/nowhere/t.json"], "cannot write /nowhere/t.json: No such"),
    (["plan", "ring", *SMALL, "-o", ""], "cannot write '': it is not a file name"),
    (["calibrate", "-o", "/nowhere/x.toml"], "cannot write /nowhere/x.toml: No such file"),
    (["simulate", "nothing", "--trace", "trace.txt"], "ends in .json or .json.gz, not trace.txt"),
    (["compare", *SMALL, "--memory", "nan"], "'nan' is not a valid number"),
    (["check", "nowhere.py", "--seq", "-5"], "'-5' is not a number of tokens"),
]


@pytest.mark.parametrize(("command", "said"), BAD, ids=[" ".join(c) for c, _ in BAD])
def test_bad_input_gives_one_line_and_exit_2(
    command: list[str], said: str, ringloom: CommandLine
) -> None:
    assert said in ringloom.refused(*command)


@pytest.mark.parametrize(
    ("library", "options"),
    [("torch", []), ("torch", ["--check"]), ("torch", ["--trace", "t.json"]), ("jax", [])],
)
def test_a_backend_that_is_not_installed_names_its_extra(
    library: str, options: list[str], ringloom: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    for module in (*backends.BACKENDS.values(), *backends.RECORDERS.values()):
        monkeypatch.delitem(sys.modules, module, raising=False)
    said = f" is not installed: pip install 'ringloom[{library}]'"
    assert said in ringloom.refused("run", "ring", *SMALL, "--backend", library, *options)
    q = np.zeros((1, 1, 8, 4), "f8")
    plan = rl.plan("ring", rl.Workload(8, heads=1, head_dim=4, dtype="float64"), 2)
    with pytest.raises(rl.RingloomError, match=re.escape(said)):
        rl.run(plan, q, q, q, backend=library)


def test_a_plan_file_goes_from_one_command_to_the_next(
    tmp_path: Path, ringloom: CommandLine
) -> None:
    path = str(tmp_path / "plan.json.gz")
    ringloom("plan", "usp", *SMALL, "--pass", "both", "-o", path, "--json")
    assert ringloom.json("run", path, "--check")["exact"] is True
    assert " ranks on numpy ran in " in " ".join(ringloom("run", path).split())


def test_names_are_shown_to_the_letter(tmp_path: Path, ringloom: CommandLine) -> None:
    """Brackets and colons would be styles and pictures to the library that prints."""
    name, path, other = "mine [/x] [red] :ring:", tmp_path / "plan.json", tmp_path / "p [red].json"
    rl.save(replace(rl.plan("ring", rl.Workload(seq=8, heads=2), 2), name=name), path)
    for command in (["plan", "-o", str(other)], ["simulate"], ["run"]):
        shown = " ".join(ringloom(command[0], str(path), *command[1:]).split())
        assert shown.startswith(f"{name}: forward of 8 tokens")
        assert command[0] != "plan" or shown.replace(" ", "").endswith("p[red].json")


def test_values_of_another_dimension_and_sinks_are_options(
    tmp_path: Path, ringloom: CommandLine
) -> None:
    work = ["--ranks", "2", "--seq", "37", "--heads", "4", "--head-dim", "6", "--pass", "both"]
    path = str(tmp_path / "plan.json")
    ringloom("plan", "zigzag", *work, "--v-head-dim", "4", "--sinks", "-o", path)
    checked = ringloom.json("run", "zigzag", *work, "--v-head-dim", "4", "--sinks", "--check")
    assert checked["exact"] is True
    assert 0 < checked["dsink_error"] <= 1e-11
    shapes = ringloom.json("run", path)["shapes"]
    assert shapes["out"] == shapes["dv"] == [1, 4, 37, 4]
    assert shapes["dsinks"] == [4]


def test_a_program_is_written_to_a_file_or_to_standard_output(
    tmp_path: Path, ringloom: CommandLine
) -> None:
    path = tmp_path / "attention.py"
    said = ringloom.json("emit", "torch", "zigzag", *SMALL, "-o", str(path))
    assert said["lines"] == len(path.read_text().splitlines())
    assert ringloom("emit", "torch", "zigzag", *SMALL) == path.read_text()
    work = rl.Workload(seq=256, heads=4, head_dim=16)
    command = " ".join(["ringloom emit torch zigzag", *SMALL])
    emitted = rl.emit(rl.plan("zigzag", work, 4, pass_="both"), "torch", command=command)
    assert emitted == path.read_text()


@pytest.mark.parametrize("form", ["--json", "--csv"])
def test_a_disk_that_is_full_is_told_in_one_line(form: str) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ringloom", "schedules", form],
            stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "ringloom: No space left on device\n")


def test_a_plan_file_refuses_workload_options(tmp_path: Path, ringloom: CommandLine) -> None:
    path = str(tmp_path / "plan.json")
    ringloom("plan", "ring", *SMALL, "-o", path, "--json")
    said = ringloom.refused("simulate", path, "--kv-seq", "64")
    assert "already contains the workload: omit --kv-seq" in said
    ringloom("simulate", path, "--json")


def test_a_corrupt_plan_file_gives_one_line(tmp_path: Path, ringloom: CommandLine) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"ringloom": 1, "plans": [{}]}')
    assert "corrupt plan file" in ringloom.refused("simulate", str(path))


def test_a_check_that_fails_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, ringloom: CommandLine
) -> None:
    from ringloom.runtimes.reference import dense

    right = dense.forward
    monkeypatch.setattr(dense, "forward", lambda *a, **k: tuple(1.001 * x for x in right(*a, **k)))
    assert ringloom.json("run", "ring", *SMALL, "--check", status=1)["exact"] is False
    assert "WRONG" in ringloom("compare", *SMALL, "--schedules", "ring", "--check", status=1)


def test_a_check_tells_every_error(ringloom: CommandLine) -> None:
    work = ["--ranks", "5", "--seq", "203", "--heads", "4", "--kv-heads", "2", "--head-dim", "16"]
    command = ["run", "usp", *work, "--mask", "documents:50,100,53 & window:40", "--pass", "both"]
    result = ringloom.json(*command, "--check")
    assert result["exact"] is True
    assert result["leak_free"] is True
    assert max(result["forward_error"], result["lse_error"]) <= 1e-12
    assert max(result["dq_error"], result["dk_error"], result["dv_error"]) <= 1e-11


def test_a_dynamic_program_is_asked_for_without_its_mask(ringloom: CommandLine) -> None:
    asked = "emit", "jax", "zigzag", *SMALL, "--dynamic"
    ours, theirs = ringloom(*asked), ringloom(*asked, "--mask", "full")
    assert ours.partition("Generated by")[2] == theirs.partition("Generated by")[2] != ""
    assert "what a full mask needs" in ringloom.refused(*asked, "--mask", "causal")


def test_the_causal_ring_is_near_half_as_fast_and_the_table_says_why(ringloom: CommandLine) -> None:
    work = ["--ranks", "8", "--seq", "256k", "--mask", "causal", "--hardware", "a100-nvlink"]
    names = ["ring", "zigzag"]
    result = ringloom.json("compare", *work, "--schedules", ",".join(names), "--check")
    rows = {row["schedule"]: row for row in result["rows"]}
    assert sorted(rows) == sorted(names)
    assert list(rows) == sorted(rows, key=lambda name: rows[name]["makespan_s"])
    for name in names[1:]:
        assert 1.6 < rows[name]["speedup_vs_ring"] < 2.0
    for row in rows.values():
        assert (row["verified_seq"], row["exact_seq"], row["exact"]) == (256 * 1024, 512, True)
    assert re.search(
        r"ring takes 1\.\d+x as long as .*rank 7 computes 1\.87x the average work", result["why"]
    )


def test_schedules_of_a_long_mask_of_one_length_are_not_said_to_have_run(
    ringloom: CommandLine,
) -> None:
    work = ["--ranks", "2", "--seq", "8k", "--mask", "documents:4k,4k", "--hardware", "h100"]
    assert "checked: no plan; the mask fits only" in ringloom(
        "compare", *work, "--schedules=ring", "--check"
    )


def test_other_packages_of_the_names_of_ours_are_left_alone(tmp_path: Path) -> None:
    for name in ("planner", "simulator", "codegen", "runtimes"):
        (tmp_path / f"{name}.py").write_text("OTHER = True\n")
    code = (
        "import planner, ringloom as rl; work = rl.Workload(seq=64, heads=1);"
        " print(planner.OTHER, rl.emit(rl.plan('ring', work, 2), 'torch')[:3])"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert said.stdout.startswith("True")


@pytest.mark.parametrize("package", ["planner", "simulator", "codegen", "runtimes"])
def test_our_packages_are_refused_under_their_bare_names(package: str) -> None:
    said = subprocess.run(
        [sys.executable, "-c", f"import {package}"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert f"ImportError: import ringloom.{package}, not {package}" in said.stderr


def test_a_rank_that_fails_tells_its_traceback_and_not_the_command_s(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RankError("rank 2 failed:\n  its traceback")

    monkeypatch.setattr("ringloom.runtimes.reference.oracle.execute", fail)
    assert main(["run", "ring", *SMALL]) == 1
    assert capsys.readouterr().err == "ringloom: rank 2 failed:\n  its traceback\n"


def test_plan_prints_the_loops_of_each_pass(ringloom: CommandLine) -> None:
    printed = ringloom("plan", "zigzag", *SMALL, "--pass", "both")
    assert "for t in 0..3:\n    A = own" in printed
    assert "attend own[1] x A, full" in printed
    forward, backward = ringloom.json("plan", "zigzag", *SMALL, "--pass", "both")["plans"]
    assert forward["loops"].startswith("mesh r=4\n")
    assert (forward["statements"], backward["statements"]) == (5, 7)
    assert forward["irregular"] is None


def test_names_of_files_are_not_broken_where_a_line_ends(
    ringloom: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    (folder := tmp_path / ("long" * 20)).mkdir()
    case = ["--ranks", "2", "--seq", "64", "--heads", "2", "--schedules", "ring"]
    names = ringloom("figures", *case, "--format", "svg", "-o", str(folder)).splitlines()
    assert sorted(map(Path, names)) == sorted(folder.iterdir())
    for command, file in (("report", "why.html"), ("plan", "plan.json"), ("run", "run.json")):
        path = str(folder / file)
        case = ["--ranks", "2", "--seq", "64", "--heads", "2", "--head-dim", "8"]
        words = [] if command == "report" else ["ring"]
        output = "--trace" if command == "run" else "-o"
        assert path in ringloom(command, *words, *case, output, path)


def test_plan_says_why_there_are_no_loops_and_what_the_tables_hold(
    ringloom: CommandLine,
) -> None:
    work = ["--ranks", "8", "--seq", "256", "--heads", "4"]
    command = ["plan", "multi-ring", *work, "--pass", "backward"]
    printed = ringloom(*command)
    (one,) = ringloom.json(*command)["plans"]
    assert "its loops would have 313 statements, more than 64" in one["irregular"]
    assert f"irregular: {one['irregular']}" in printed
    assert "\n    step 0: 8 rectangles, " in printed
    assert one["loops"] is one["statements"] is None
    decoding = ringloom("plan", "pass-q", "--ranks", "4", "--seq", "1", "--kv-seq", "64")
    assert "step 0: 1 rectangle, 1 message of Q\n" in decoding


def test_a_plan_for_which_the_bound_does_not_hold_has_no_ratio_but_a_reason(
    ringloom: CommandLine,
) -> None:
    work = ["--ranks", "8", "--seq", "1000", "--hardware", "h100"]
    rows = ringloom.json("compare", *work, "--schedules", "zigzag", "--schedules", "usp:ulysses=2")[
        "rows"
    ]
    rows = {row["schedule"]: row for row in rows}
    uneven = rows["usp:ulysses=2"]
    assert uneven["bound_ratio"] is None
    assert uneven["bound_reason"] == "a rank owns 126 tokens of the query side, more than 125"
    assert uneven["bound_s"] == rows["zigzag"]["bound_s"]
    assert uneven["compute_bound_ratio"] == uneven["makespan_s"] / uneven["compute_bound_s"]
    assert uneven["compute_bound_s"] == rows["zigzag"]["compute_bound_s"] <= uneven["bound_s"]
    printed = ringloom("compare", *work, "--schedules", "zigzag", "--schedules", "usp:ulysses=2")
    assert f" {bound_multiple(uneven['compute_bound_ratio'])}c\n" in printed
    words = " ".join(printed.split())
    assert (
        "c: multiple of the bound of compute and memory alone; the lower bound does not apply "
        in words
    )
    assert "to usp:ulysses=2: a rank owns 126 tokens of the query side" in words


def test_messages_split_block_by_block_are_listed_where_that_saves_a_tenth(
    ringloom: CommandLine,
) -> None:
    work = ["--ranks", "16", "--seq", "256k", "--hardware", "a100-pcie"]
    result = {}
    for mask in ("window:4096", "full"):
        command = ["compare", *work, "--mask", mask, "--schedules", "zigzag,usp"]
        rows = ringloom.json(*command)["rows"]
        result[mask] = {row["schedule"]: row["makespan_s"] for row in rows}
    assert set(result["full"]) == {"zigzag", "usp"}
    assert set(result["window:4096"]) == {"zigzag", "usp", "usp --trim blocks"}
    assert result["window:4096"]["usp --trim blocks"] <= 0.9 * result["window:4096"]["usp"]


def test_what_memory_cannot_hold_is_one_line(
    ringloom: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planned(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 4.00 GiB for an array")

    monkeypatch.setattr("ringloom.cli.cli.main", planned)
    said = ringloom.refused("plan", "ring", *SMALL)
    assert said.startswith("ringloom: not enough memory on this machine: Unable to")
