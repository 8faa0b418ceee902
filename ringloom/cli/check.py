"""Run an emitted file and compare it with dense attention.

Ringloom chooses the inputs, computes dense attention and sets the limits. Outputs and gradients of
all ranks are compared in float64; if they differ, the first wrong query-key pair is reported. The
file's own check runs as a second opinion: the exit status is 0 only if both find the file exact.
The file runs with your permissions, not in a sandbox.

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
ARRAYS = 3  # copies of the inputs and results of a case that are in memory at least
NAMING = 5.0, 0.2  # seconds, and share of the time, reserved for naming unfinished ranks


@click.command()
@click.argument("file", type=click.Path())
@click.option(
    "--seq",
    type=TOKENS,
    help="Number of query tokens.  [default: a short length the program accepts]",
)
@click.option("--mask", help="Mask to check against.  [default: the mask in the file's PLAN]")
@click.option("--seed", type=Whole(0), help="Random seed of the inputs.  [default: random]")
@click.option(
    "--memory",
    type=Number(0, min_open=True),
    metavar="GIB",
    help="Memory for all ranks together.  [default: 3/4 of this machine's]",
)
@click.option("--time-limit", type=Number(0, min_open=True), default=600.0, help="Maximum seconds.")
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
    if seq and own.status == 2 and not verdict.exact:  # the file does not accept this length
        raise RingloomError(f"{file}: {own.summary.splitlines()[-1].rpartition('rror: ')[2]}")
    exact = verdict.exact and own.passed is not False
    show(
        document(file, case, verdict, own) | {"exact": exact},
        judgement(case, verdict, own.passed),
        text=own.summary,
    )
    return 0 if exact else 1


def read_claims(file: Path) -> Claims:
    """Reads the PLAN of a file; raises RingloomError unless `ringloom emit` wrote it."""
    if not file.is_file():
        raise RingloomError(f"{file} is a folder" if file.is_dir() else f"no file {file}")
    return read(file, claims, str(file), LARGEST)


def refuse_huge(file: str, work: Workload, room: int) -> None:
    """Raises RingloomError if inputs and results alone take more than `room` bytes."""
    queries, keys = work.heads * work.seq, work.kv_heads * work.kv_seq
    need = ARRAYS * 8 * work.batch * (queries + keys) * (work.head_dim + work.v_head_dim)
    if need > room:
        raise RingloomError(
            f"{file}: {work.seq} tokens of {work.heads} heads take {size(need)} in float64, more"
            f" than the {size(room)} of --memory: use a smaller --seq"
        )


def document(file: str, case: Case, verdict: Verdict, own: SelfCheck) -> dict[str, Any]:
    """Returns the JSON object of a verdict; errors that are not finite are null."""
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
