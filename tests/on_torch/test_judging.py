"""Torch programs are judged by what they compute, whatever else they do and say."""

import json
import re
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ringloom as rl
from ringloom.planner.errors import RingloomError

pytest.importorskip("torch")

from process_trees import begun, wait_for
from ringloom.runtimes.judging import case as cases
from ringloom.runtimes.judging.case import Case
from ringloom.runtimes.judging.claims import parse_claims
from ringloom.runtimes.judging.process import run_and_compare
from ringloom.runtimes.judging.verdict import Verdict
from ringloom.views.judgement import reason

SMALL = {"seq": 24, "heads": 4, "kv_heads": 2, "head_dim": 8}
WORK = rl.Workload(**SMALL, mask=rl.Causal())


def emitted(schedule: str, work: rl.Workload, ranks: int = 2, pass_: str = "both") -> str:
    return rl.emit(rl.plan(schedule, work, ranks, pass_=pass_), "torch")


def case_of(source: str, seq: int | None = None, mask: str | None = None) -> Case:
    said = parse_claims(source.encode())
    return Case(
        source, said.target, said.ranks, said.workload(seq, mask), said.backward, said.dynamic,
        seed=7, memory=2**34, deadline=time.monotonic() + 60.0,
    )  # fmt: skip


def judge(case: Case, folder: Path) -> Verdict:
    return run_and_compare(case, folder, lambda *_: None)


EXACT = {
    "free": emitted("zigzag", WORK),
    "bound": emitted("zigzag", replace(WORK, seq=37, kv_seq=37, mask=rl.Documents((20, 17)))),
    "cross": emitted("tree", replace(WORK, seq=5, kv_seq=32)),
    "sinks": emitted("burst", replace(WORK, sinks=True, v_head_dim=4, scale=0.3)),
    "forward": emitted("ring", WORK, pass_="forward"),
    "alone": emitted("ring", WORK, ranks=1),
    "dynamic": rl.emit(rl.plan("zigzag", WORK, 2, pass_="both"), "torch", dynamic=True),
}


@pytest.mark.parametrize("kind", EXACT)
def test_programs_of_every_kind_are_exact(kind: str, tmp_path: Path) -> None:
    case = case_of(EXACT[kind], mask="causal & window:5" if kind == "dynamic" else None)
    verdict = judge(case, tmp_path)
    assert verdict.exact, verdict
    names = ["forward", "dq", "dk", "dv", "dsink"]
    assert [*verdict.errors] == names[: {"forward": 1, "sinks": 5}.get(kind, 4)]
    assert verdict.queries == case.work.seq
    assert max(verdict.errors.values()) > 0


ZIGZAG = EXACT["free"]
WRAPPED = ZIGZAG.replace("def attention(", "def right(").replace(
    "# ---- Self-check",
    "def attention(q, k, v, *, group=None, **more):\n    BODY\n\n\n# ---- Self-check",
)


def doing(body: str) -> str:
    """The program, whose attention does something else."""
    return WRAPPED.replace("BODY", body.replace("\n", "\n    "))


def beginning(lines: str) -> str:
    """The program, which does something first when it is imported."""
    return ZIGZAG.replace("\nRANKS =", f"\n{lines}\nRANKS =")


FORGING = """
frame = sys._getframe()
while frame.f_code.co_name != "_run_rank":
    frame = frame.f_back
(frame.f_locals["folder"] / f"parts-{{dist.get_rank()}}.npz").write_bytes({})
os._exit(0)
"""

LYING = {
    "another mask": (ZIGZAG.replace('"mask": "causal"', '"mask": "full"'), ""),
    "another scale": (ZIGZAG.replace('"scale": 0.35', '"scale": 0.25'), ""),
    "no attention": (doing("return q.clone().requires_grad_() * k.sum() * v.sum()"), ""),
    "a wrong gradient": (doing("return right(q, k, v.detach(), group=group) + 0 * v.sum()"), ""),
    "NaN": (
        doing("return right(q, k, v, group=group) * (float('nan') if dist.get_rank() else 1.0)"),
        "NaN in forward of rank 1, dq of rank 1, dk of rank",
    ),
    "a killed rank": (
        doing("if dist.get_rank():\n    os.kill(os.getpid(), 9)\nreturn right(q, k, v)"),
        "rank 1 failed (signal 9: Killed) and left no traceback\nrank 0 was in forward, line ",
    ),
    "a rank's error": (doing("return right(q, k, v, group=group) + dist.get_rank() * 1e-9"), ""),
    "another shape": (doing("return right(q, k, v, group=group)[:, :, :1] * 1.0"), "shape"),
    "no result": (doing("return None"), "Error"),
    "tokens twice": (
        ZIGZAG.replace("pieces[2 * RANKS - 1 - rank]", "pieces[:RANKS][rank]"),
        "positions do not form a layout: of queries, rank 0 has position 0 twice",
    ),
    "exits with 0": (beginning("os._exit(0)"), "(exit code 0) and left no traceback"),
    "exits with 0 later": (doing("os._exit(0)"), "(exit code 0) and left no traceback"),
    "says exact": (
        beginning("""print('{"exact": true}', flush=True)\nsys.exit(0)"""),
        "SystemExit: 0",
    ),
    "raises": (doing("raise KeyError('\\x1b[2J')"), "KeyError"),
    "takes 100 GB": (doing("x = bytearray(10**11)\nreturn right(q, k, v)"), "MemoryError"),
    **{
        f"forges results {number}": (doing(FORGING.format(content)), "of the ranks cannot be read")
        for number, content in enumerate((b"PK\x03\x04", b"\x80\x04K\x01.", b""))
    },
}


@pytest.mark.parametrize("kind", LYING)
def test_whatever_else_a_program_does_it_is_not_exact(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, said = LYING[kind]
    assert source != ZIGZAG
    verdict = judge(case_of(source), tmp_path)
    assert not verdict.exact
    assert said in verdict.reason
    assert bool(verdict.reason) == bool(said)
    assert verdict.errors or said


STALLING = {
    "while True: pass": r"(?s).*rank 1 was in attention, line \d+ of .*: while True: pass",
    "os.kill(os.getpid(), 19 * dist.get_rank())\nreturn right(q, k, v)": (
        r"(?s).*rank 0 was in forward, line \d+ of .*\nrank 1 is stopped by a signal"
    ),
}


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("merge_attention(output, [q], [k, v], True)", "pass", "block lost"),
        ("cols)], gradients)", "cols)], [x * 2 for x in gradients])", "gradient scaled"),
    ],
    ids=["forward", "backward"],
)
def test_the_first_wrong_pair_is_named(right: str, wrong: str, said: str, tmp_path: Path) -> None:
    assert right in ZIGZAG
    verdict = judge(case_of(ZIGZAG.replace(right, wrong)), tmp_path)
    assert not verdict.exact
    assert verdict.fault.startswith(f"{said}: "), verdict.fault
    assert re.search(r"query \d+ \(rank \d, row \d+\)", verdict.fault)


@pytest.mark.parametrize("body", STALLING)
def test_a_program_that_never_ends_is_not_exact_and_its_ranks_are_named(
    body: str, tmp_path: Path
) -> None:
    case = replace(case_of(doing(body)), deadline=time.monotonic() + 5.0)
    verdict = judge(case, tmp_path)
    assert not verdict.exact
    assert re.match(r"ranks \[0, 1\] are not done after [\d.]+ s", verdict.reason)
    assert re.match(STALLING[body], verdict.reason)


def test_a_reason_on_the_terminal_has_the_error_and_a_line_for_each_other_rank() -> None:
    traceback = 'Traceback (most recent call last):\n  File "x.py", line 1, in forward\n'
    said = reason(f"rank 1 failed:\n{traceback}KeyError: 'x'\nrank 0 was in forward, line 9")
    assert said == "rank 1 failed: KeyError: 'x'\nrank 0 was in forward, line 9"


def test_a_length_that_a_program_does_not_take_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RingloomError, match="25 tokens are not divisible by 4"):
        judge(case_of(ZIGZAG, seq=25), tmp_path)


def test_the_length_of_a_plan_is_not_mistaken_for_a_shard_of_it(tmp_path: Path) -> None:
    assert judge(case_of(ZIGZAG, seq=48), tmp_path).exact


def test_of_long_sequences_some_queries_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases, "MIN_QUERIES", 7)
    monkeypatch.setattr(cases, "MAX_PAIRS", 0)
    case = case_of(EXACT["sinks"])
    rows = case.rows()
    assert len(rows) == len({*rows.tolist()}) == 7
    assert np.array_equal(np.flatnonzero(case.inputs()[3].any((0, 1, 3))), rows)
    verdict = judge(case, tmp_path)
    assert verdict.exact, verdict
    assert verdict.queries == 7
    assert not judge(replace(case, work=replace(case.work, mask=rl.Full())), tmp_path).exact


# ---- the command


def command(path: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "ringloom", "check", str(path), "--json", *options]


def test_the_command_does_not_believe_a_file(tmp_path: Path) -> None:
    """Its own check passes, and says so; the judge's answer comes by another way."""
    source = doing("print('{\"exact\": true}')\nreturn q + 0 * (k.sum() + v.sum())").partition(
        "# ---- Self-check"
    )[0]
    (tmp_path / "lying.py").write_text(f"{source}\ndef main(): pass\nif True: main()\n")
    with begun(command(tmp_path / "lying.py")) as program:
        printed, _ = program.process.communicate(timeout=300)
        told = json.loads(printed)
        assert (program.process.returncode, told["exact"], told["self_check"]) == (1, False, True)
        assert told["forward_error"] > 1e-3
        assert not program.tree()


HIDING = """
import subprocess, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open("{}/%d" % os.getpid(), "w").close()
time.sleep(600)
"""


def test_no_process_of_a_judged_file_outlives_the_command(tmp_path: Path) -> None:
    place = tmp_path / "ranks"
    place.mkdir()
    (tmp_path / "hiding.py").write_text(beginning(HIDING.format(place)))
    with begun(command(tmp_path / "hiding.py")) as program:
        wait_for(lambda: len([*place.iterdir()]) >= 2)
        assert len(program.tree()) >= 8
        program.send(signal.SIGKILL)
        wait_for(lambda: not program.tree())


def test_the_time_limit_is_for_everything(tmp_path: Path) -> None:
    (tmp_path / "hiding.py").write_text(beginning(HIDING.format(tmp_path)))
    with begun(command(tmp_path / "hiding.py", "--time-limit", "4")) as program:
        printed, _ = program.process.communicate(timeout=120)
        told = json.loads(printed)
        assert (program.process.returncode, told["exact"], told["self_check"]) == (1, False, None)
        assert "not done after" in told["reason"]
        assert not program.tree()
