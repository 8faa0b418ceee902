"""The command check without torch or JAX: what it reads, believes, limits and shows."""

import json
import math
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ringloom as rl
from command_line import CommandLine
from process_trees import begun, wait_for
from ringloom.cli import output
from ringloom.cli.check import check
from ringloom.planner.errors import RingloomError
from ringloom.runtimes import judging
from ringloom.runtimes.judging.case import Case, layout_error
from ringloom.runtimes.judging.claims import parse_claims
from ringloom.runtimes.judging.self_check import self_check
from ringloom.runtimes.judging.verdict import Verdict

PLAN = {"name": "ring", "ranks": 2, "seq": 8, "kv_seq": 8, "heads": 2, "kv_heads": 2, "head_dim": 4}
PLAN |= {"scale": 0.5, "dtype": "bfloat16", "mask": "causal"}
HEAD = "import torch\nCHECKED = 8\ndef positions(rank, seq=8): ...\ndef attention(q, k, v): ...\n"
PROGRAM = f"{HEAD}PLAN = {PLAN}\n"


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Callable[[Verdict], list[Case]]:
    """Has a verdict given without a run; returns the cases that it is given on."""
    monkeypatch.setattr(check, "require_library", lambda *_: None)

    def give(verdict: Verdict) -> list[Case]:
        cases = list[Case]()
        monkeypatch.setattr(check, "judge", lambda case, *_: (cases.append(case), verdict)[1])
        return cases

    return give


EXACT = Verdict(True, "", {"forward": 1e-16}, {"forward": 1e-12}, 8)


# ---- what a file says of itself


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "print('exact')",
            "ringloom did not emit this file: it has no functions attention and positions",
        ),
        ("x = (\n", "the file is not valid Python: '(' was never closed"),
        ("\0", "the file is not valid Python: "),
        (HEAD, "ringloom did not emit this file: it has no PLAN of literals"),
        (
            f"{HEAD}PLAN = dict(ranks=2)",
            "ringloom did not emit this file: it has no PLAN of literals",
        ),
        (f"{HEAD}PLAN = {PLAN | {'ranks': 0}}", "PLAN['ranks'] 0 is less than 1"),
        (f"{HEAD}PLAN = {PLAN | {'heads': 'x'}}", "PLAN['heads'] 'x' is not a whole number"),
        (f"{HEAD}PLAN = {PLAN | {'mask': 'casual'}}", "did you mean causal?"),
        (
            f"{HEAD}PLAN = {PLAN | {'mask': 'documents@/etc/hosts'}}",
            "the mask in PLAN refers to a file",
        ),
        (f"{HEAD}PLAN = {PLAN | {'heads': 2**30}}", "more than the"),
    ],
)
def test_files_that_are_no_program_are_refused(
    text: str, said: str, tmp_path: Path, ringloom: CommandLine
) -> None:
    (tmp_path / "program.py").write_text(text)
    refusal = ringloom.refused("check", str(tmp_path / "program.py"))
    assert f"program.py: {said}" in refusal or said in refusal.partition("program.py: ")[2]


@pytest.mark.parametrize("target", ["torch", "jax"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_claims_are_those_of_the_plan(target: str, dynamic: bool) -> None:
    work = rl.Workload(seq=4096, heads=4, kv_heads=2, head_dim=8, v_head_dim=8)
    work = replace(work, mask=rl.Full() if dynamic else rl.Causal())
    for pass_ in ("forward", "both"):
        source = rl.emit(rl.plan("zigzag", work, 2, pass_=pass_), target, dynamic=dynamic)
        said = parse_claims(source.encode())
        assert (said.target, said.dynamic, said.ranks) == (target, dynamic, 2)
        assert said.backward == (pass_ == "both" or (dynamic and target == "torch"))
        usual = said.workload(None, None)
        assert (usual.heads, usual.kv_heads, usual.head_dim, usual.dtype) == (4, 2, 8, "float64")
        assert usual.seq == (4096 if dynamic and target == "jax" else 128 if dynamic else 256)
        assert str(usual.mask) == "causal"
        assert said.workload(512, "window:5").mask == rl.Window(5)


def test_a_file_does_not_choose_to_be_judged_on_a_token() -> None:
    long = f"{HEAD}PLAN = {PLAN | {'seq': 4096, 'kv_seq': 4096}}"
    assert parse_claims(long.encode()).workload(None, None).seq == 4096
    assert (
        parse_claims(long.replace("CHECKED = 8", "CHECKED = 256").encode()).workload(None, None).seq
        == 256
    )


@given(st.integers(1, 40), st.integers(1, 5), st.randoms(use_true_random=False))
def test_a_layout_has_every_position_once(tokens: int, ranks: int, random: Random) -> None:
    order = np.array(random.sample(range(tokens), tokens))
    layout = np.array_split(order, ranks)
    assert layout_error(layout, tokens, padded=False) == ""
    padded = [np.append(x, -1) for x in layout]
    assert layout_error(padded, tokens, padded=True) == ""
    assert "position -1" in layout_error(padded, tokens, padded=False)
    assert "no rank has position" in layout_error([x[x != order[0]] for x in layout], tokens, False)
    assert str(order[0]) in layout_error(
        [*layout[:-1], np.append(layout[-1], order[0])], tokens, False
    )
    assert f"position {tokens}, but there are {tokens} tokens" in layout_error(
        [np.append(layout[0], tokens)], tokens, False
    )
    assert "list of integers" in layout_error([x.astype(float) for x in layout], tokens, False)


# ---- the verdict, and the second opinion


def program(folder: Path, own_check: str, name: str = "program.py") -> str:
    (folder / name).write_text(f"{PROGRAM.replace('import torch', '')}{own_check}\n")
    return str(folder / name)


@pytest.mark.parametrize("passes", [True, False])
@pytest.mark.parametrize("exact", [True, False])
def test_a_program_is_exact_where_neither_the_judge_nor_its_own_check_disagrees(
    exact: bool, passes: bool, tmp_path: Path, ringloom: CommandLine,
    judged: Callable[[Verdict], list[Case]],
) -> None:  # fmt: skip
    judged(replace(EXACT, exact=exact, reason="" if exact else "positions do not form a layout"))
    path = program(tmp_path, f"print('exact', True); raise SystemExit({int(not passes)})")
    both = exact and passes
    told = ringloom.json("check", path, status=int(not both))
    assert (told["exact"], told["self_check"]) == (both, passes)
    assert told["output"] == "exact True"
    alone = ringloom.json("check", path, "--no-self-check", status=int(not exact))
    assert (alone["exact"], alone["self_check"], alone["output"]) == (exact, None, "")
    shown = ringloom("check", path, status=int(not both))
    assert ("own check  passes" in shown) == passes
    assert ("positions do not form a layout" in shown) != exact


def test_errors_that_are_no_numbers_are_null(
    tmp_path: Path, ringloom: CommandLine, judged: Callable[[Verdict], list[Case]]
) -> None:
    judged(Verdict(False, "", {"forward": math.nan, "dq": math.inf}, {"forward": 1, "dq": 1}))
    told = ringloom("check", program(tmp_path, ""), "--json", "--no-self-check", status=1)
    document = json.loads(told, parse_constant=pytest.fail)
    assert (document["forward_error"], document["dq_error"]) == (None, None)


def test_options_say_what_is_judged_and_any_name_of_a_file_goes(
    tmp_path: Path, ringloom: CommandLine, monkeypatch: pytest.MonkeyPatch,
    judged: Callable[[Verdict], list[Case]],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("-v.py").write_text(
        f"{PROGRAM.replace('import torch', '')}import sys\nprint(sys.argv[1:])"
    )
    cases = judged(EXACT)
    options = ("--seq", "4k", "--mask", "window:3", "--seed", "5", "--memory", "2")
    assert ringloom("check", *options, "--", "-v.py").endswith("\n['--seq', '4096']\n")
    (case,) = cases
    assert (case.work.seq, case.work.mask, case.seed) == (4096, rl.Window(3), 5)
    assert (case.memory, case.ranks, case.backward) == (2**31, 2, False)


def test_a_length_that_a_program_refuses_is_bad_input(
    tmp_path: Path, ringloom: CommandLine, judged: Callable[[Verdict], list[Case]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    judged(Verdict(False, "rank 0 failed"))
    path = program(tmp_path, "import argparse\nargparse.ArgumentParser().error('no such length')")
    assert "program.py: no such length" in ringloom.refused("check", path, "--seq", "50")
    assert ringloom.json("check", path, status=1)["exact"] is False

    def refuse(*_: object) -> Verdict:
        raise RingloomError("50 tokens are not divisible by 8")

    monkeypatch.setattr(check, "judge", refuse)
    said = ringloom.refused("check", path, "--seq", "50")
    assert "program.py: 50 tokens are not divisible by 8" in said


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("AssertionError: not exact", ["AssertionError: not exact"]),
        ("a.b.SomeError", ["a.b.SomeError"]),
        (
            "[rank1]: ValueError: 3\n[rank0]: ValueError: 3\n[rank2]: KeyError: 4",
            ["ValueError: 3", "KeyError: 4"],
        ),
        ("ValueError: 3\ntorch.elastic.ChildFailedError: \nroot.py FAILED", ["ValueError: 3"]),
        ("killed", ["log", "Traceback (most recent call last):", "  File main", "killed"]),
    ],
)
def test_of_an_own_check_that_fails_its_numbers_and_errors_are_shown(
    said: str, shown: list[str], tmp_path: Path
) -> None:
    words = f"log\nTraceback (most recent call last):\n  File main\n{said}\nlog of the end"
    text = f"import sys\nprint('seq 64, largest errors: 1e+00')\nsys.exit({words!r})"
    (tmp_path / "program.py").write_text(text)
    own = self_check(str(tmp_path / "program.py"), None, 0, 60.0)
    lines = own.summary.splitlines()
    assert lines[0] == "seq 64, largest errors: 1e+00"
    assert lines[1:] == shown + ["log of the end"] * (said == "killed")
    assert "log of the end" in own.text


def test_an_own_check_has_limits(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text("print('exact', flush=True)\nx = bytearray(10**11)")
    own = self_check(str(path), None, 2**30, 60.0)
    assert (own.passed, own.summary) == (False, "exact\nMemoryError")
    path.write_text("while True: print('\\x1b[31mexact')")
    began = time.monotonic()
    own = self_check(str(path), None, 2**30, 1.0)
    assert own.passed is None
    assert "\x1b" not in own.text
    assert time.monotonic() - began < 30


def test_progress_is_a_line_now_and_then_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = iter([0.0, 1.0, 11.0, 12.0, 35.0])
    monkeypatch.setattr(output.time, "monotonic", lambda: next(now))
    with output.stages() as track:
        for stage in [("a", 0, 0), ("b", 0, 0), ("b", 1, 3), ("b", 2, 3)]:
            track(*stage)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == ["ringloom: 11 s, b", "ringloom: 35 s, b, 2 of 3"]


TELLING = """import os, sys; os.write(int(sys.argv[2]), b'{"stage": ["a", 0, 0]}\\n')"""
ENDINGS = [
    ("import os; os.kill(os.getpid(), 9)", 60.0, "ended (signal 9: Killed): starting"),
    (TELLING, 60.0, "ended (exit code 0): a"),
    ("import time; time.sleep(600)", 2.0, "not done after 2 s: starting"),
]


@pytest.mark.parametrize(("ending", "seconds", "said"), ENDINGS)
def test_without_a_verdict_a_program_is_not_exact(
    ending: str, seconds: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "MAIN", ending)
    work = rl.Workload(seq=8, dtype="float64")
    case = Case(PROGRAM, "torch", 2, work, True, False, seed=0, memory=2**33, deadline=1.0)
    verdict = judging.judge(case, seconds, lambda *_: None)
    assert not verdict.exact
    assert verdict.reason.endswith(said)


# ---- processes

HIDING = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "w").close()
        time.sleep(600)
    os._exit(0)
time.sleep({seconds})
"""
HOLDING = """
import sys
from ringloom.runtimes.process_tree import tree
with tree([sys.executable, *sys.argv[1:]]) as process:
    process.wait()
"""


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT, None], ids=str)
def test_a_tree_of_processes_ends_with_who_began_it_and_with_its_program(
    sent: signal.Signals | None, tmp_path: Path
) -> None:
    """Processes in other sessions and orphans end, too."""
    hiding, seconds = tmp_path / "hiding.py", 600 if sent else 1
    hiding.write_text(HIDING.format(seconds=seconds))
    with begun([sys.executable, "-c", HOLDING, str(hiding), str(tmp_path / "began")]) as program:
        wait_for((tmp_path / "began").exists)
        if sent:
            assert len(program.tree()) >= 5
            program.send(sent)
        wait_for(lambda: not program.tree())


def test_the_status_of_a_program_in_a_tree_is_its_own(tmp_path: Path) -> None:
    from ringloom.runtimes.process_tree import tree

    for ending, status in (("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", -9), ("", 0)):
        with tree([sys.executable, "-c", f"import os, sys\n{ending}"]) as process:
            assert process.wait(60) == status
