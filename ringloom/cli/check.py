"""Run an emitted file and compare it with dense attention.

Inputs, dense attention and limits are ours. Outputs and gradients of all ranks are compared, in
float64; where they differ, the first pair that is attended wrongly is named. The file's own check
is a second opinion; the exit status is 1 unless both find the file exact. The file runs with your
rights: this is no sandbox.

Example:
  ringloom check attention.py --seq 4096
  ringloom check attention.py --mask "causal & window:128" --no-self-check
"""

import math
import secrets
import time
from pathlib import Path
from typing import Any

import click

from ringloom.cli.options import TOKENS
from ringloom.cli.output import Number, Whole, show, stages
from ringloom.planner.disk import read
from ringloom.planner.errors import RingloomError
from ringloom.planner.optional import require
from ringloom.planner.workload import Workload
from ringloom.runtimes.judging import judge
from ringloom.runtimes.judging.case import Case
from ringloom.runtimes.judging.claims import Claims, claims
from ringloom.runtimes.judging.self_check import KEPT, SelfCheck, self_check
from ringloom.runtimes.judging.verdict import Verdict
from ringloom.runtimes.machine import memory_bytes
from ringloom.views.judgement import judgement
from ringloom.views.units import size

LARGEST = 1 << 28  # bytes of a program, whose tables may be long
SHARE = 0.75  # of the machine's memory that ranks may take
ARRAYS = 3  # times that the inputs and results of a case are in memory at least
NAMING = 5.0, 0.2  # seconds, and share of the time, that are left to name ranks that are not done


@click.command()
@click.argument("file", type=click.Path())
@click.option(
    "--seq", type=TOKENS, help="Query tokens, by default a short length that the program takes."
)
@click.option("--mask", help="The mask that it must compute.  [default: that of its PLAN]")
@click.option("--seed", type=Whole(0), help="Seed of the inputs.  [default: another each time]")
@click.option(
    "--memory",
    type=Number(0, min_open=True),
    metavar="GIB",
    help="GiB for all ranks together.  [default: 3/4 of this machine's]",
)
@click.option("--time-limit", type=Number(0, min_open=True), default=600.0, help="Seconds at most.")
@click.option(
    "--self-check/--no-self-check", "asked", default=True, help="Also run the file's own check."
)
def command(
    file: str,
    seq: int | None,
    mask: str | None,
    seed: int | None,
    memory: float | None,
    time_limit: float,
    asked: bool,
) -> int:
    end = time.monotonic() + time_limit
    claimed = read_claims(Path(file))
    try:
        work = claimed.workload(seq, mask)
    except RingloomError as error:
        raise RingloomError(f"{file}: {error}") from None
    room = int(SHARE * memory_bytes() if memory is None else memory * 2**30)
    refuse_huge(file, work, room)
    require(claimed.target, claimed.target)
    case = Case(
        Path(file).read_text(encoding="utf-8"),
        target=claimed.target,
        ranks=claimed.ranks,
        work=work,
        backward=claimed.backward,
        dynamic=claimed.dynamic,
        seed=secrets.randbits(32) if seed is None else seed,
        memory=room,
        until=end - min(NAMING[0], NAMING[1] * time_limit),
    )
    with stages() as track:
        try:
            verdict = judge(case, time_limit, track)
        except RingloomError as error:
            raise RingloomError(f"{file}: {error}") from None
        own = SelfCheck(None)
        if asked and end > time.monotonic():
            track("running the file's own check", 0, 0)
            own = self_check(file, seq, room, end - time.monotonic())
    if seq and own.status == 2 and not verdict.exact:  # its options have no such length
        raise RingloomError(f"{file}: {own.summary.splitlines()[-1].rpartition('rror: ')[2]}")
    exact = verdict.exact and own.passed is not False
    show(
        document(file, case, verdict, own) | {"exact": exact},
        judgement(case, verdict, own.passed),
        text=own.summary,
    )
    return 0 if exact else 1


def read_claims(file: Path) -> Claims:
    """Reads what a file says of itself; raises RingloomError for no program of `ringloom emit`."""
    if not file.is_file():
        raise RingloomError(f"{file} is a folder" if file.is_dir() else f"no file {file}")
    return read(file, claims, str(file), LARGEST)


def refuse_huge(file: str, work: Workload, room: int) -> None:
    """Raises RingloomError where inputs and results alone take more memory than there may be."""
    queries, keys = work.heads * work.seq, work.kv_heads * work.kv_seq
    need = ARRAYS * 8 * work.batch * (queries + keys) * (work.head_dim + work.v_head_dim)
    if need > room:
        raise RingloomError(
            f"{file}: {work.seq} tokens of {work.heads} heads take {size(need)} in float64, more"
            f" than the {size(room)} of --memory: give a smaller --seq"
        )


def document(file: str, case: Case, verdict: Verdict, own: SelfCheck) -> dict[str, Any]:
    """The JSON object of a judgement; errors that are not finite are null."""
    work, names = case.work, ("forward", "dq", "dk", "dv", "dsink")
    finite = {name: error for name, error in verdict.errors.items() if math.isfinite(error)}
    return {
        "file": file,
        "exact": False,
        "reason": verdict.reason[-KEPT:],
        "fault": verdict.fault,
        "target": case.target,
        "ranks": case.ranks,
        "seq": work.seq,
        "kv_seq": work.kv_seq,
        "mask": str(work.mask),
        "dtype": work.dtype,
        "pass": "both" if case.backward else "forward",
        "queries": verdict.queries,
        "seed": case.seed,
        **{f"{name}_error": finite.get(name) for name in names},
        "tolerances": verdict.tolerances,
        "self_check": own.passed,
        "output": own.words,
    }
