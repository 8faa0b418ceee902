"""Run an emitted file and compare it with dense attention.

Ringloom chooses the inputs, computes dense attention and sets the tolerances. It compares outputs
and gradients of all ranks in float64 and, if they differ, reports the first wrong query-key pair.
The self-check of the file also runs: the exit status is 0 only if both checks pass. The file runs
with your permissions, not in a sandbox.

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
from ringloom.cli.output import Integer, Number, show, stages
from ringloom.planner.disk import read
from ringloom.planner.errors import RingloomError
from ringloom.planner.optional import require_library
from ringloom.planner.workload import Workload
from ringloom.runtimes.judging import judge
from ringloom.runtimes.judging.case import Case
from ringloom.runtimes.judging.claims import Claims, parse_claims
from ringloom.runtimes.judging.self_check import KEPT, SelfCheck, self_check
from ringloom.runtimes.judging.verdict import Verdict
from ringloom.runtimes.machine import memory_bytes
from ringloom.views.judgement import judgement
from ringloom.views.units import size

MAX_FILE = 1 << 28  # bytes of a program, which may contain large tables
MEMORY_SHARE = 0.75  # fraction of the machine's memory that ranks may use
MIN_COPIES = 3  # minimum number of copies of inputs and results in memory
REPORT_TIME = 5.0, 0.2  # seconds, and fraction of the time, to name unfinished ranks at the end


@click.command()
@click.argument("file", type=click.Path())
@click.option(
    "--seq",
    type=TOKENS,
    help="Number of query tokens.  [default: a short length that the program accepts]",
)
@click.option("--mask", help="Mask of dense attention.  [default: the mask in the file's PLAN]")
@click.option("--seed", type=Integer(0), help="Random seed of the inputs.  [default: random]")
@click.option(
    "--memory",
    type=Number(0, min_open=True),
    metavar="GIB",
    help="Memory for all ranks together.  [default: 3/4 of this machine's memory]",
)
@click.option("--time-limit", type=Number(0, min_open=True), default=600.0, help="Maximum seconds.")
@click.option(
    *("--self-check/--no-self-check", "with_self_check"),
    default=True,
    help="Also run the self-check of the file.",
)
def command(
    file: str,
    seq: int | None,
    mask: str | None,
    seed: int | None,
    memory: float | None,
    time_limit: float,
    with_self_check: bool,
) -> int:
    end = time.monotonic() + time_limit
    plan_claims = read_claims(Path(file))
    try:
        work = plan_claims.workload(seq, mask)
    except RingloomError as error:
        raise RingloomError(f"{file}: {error}") from None
    memory_limit = int(MEMORY_SHARE * memory_bytes() if memory is None else memory * 2**30)
    refuse_huge(file, work, memory_limit)
    require_library(plan_claims.target, plan_claims.target)
    case = Case(
        Path(file).read_text(encoding="utf-8"),
        target=plan_claims.target,
        ranks=plan_claims.ranks,
        work=work,
        backward=plan_claims.backward,
        dynamic=plan_claims.dynamic,
        seed=secrets.randbits(32) if seed is None else seed,
        memory=memory_limit,
        deadline=end - min(REPORT_TIME[0], REPORT_TIME[1] * time_limit),
    )
    with stages() as track:
        try:
            verdict = judge(case, time_limit, track)
        except RingloomError as error:
            raise RingloomError(f"{file}: {error}") from None
        self_result = SelfCheck(None)
        if with_self_check and end > time.monotonic():
            track("running the self-check of the file", 0, 0)
            self_result = self_check(file, seq, memory_limit, end - time.monotonic())
    if seq and self_result.status == 2 and not verdict.exact:  # the length is not accepted
        reason = self_result.summary.splitlines()[-1].rpartition("rror: ")[2]
        raise RingloomError(f"{file}: {reason}")
    exact = verdict.exact and self_result.passed is not False
    show(
        document(file, case, verdict, self_result) | {"exact": exact},
        judgement(case, verdict, self_result.passed),
        text=self_result.summary,
    )
    return 0 if exact else 1


def read_claims(file: Path) -> Claims:
    """Reads the PLAN of a file; raises RingloomError unless `ringloom emit` wrote the file."""
    if not file.is_file():
        raise RingloomError(f"{file} is a folder" if file.is_dir() else f"no file {file}")
    return read(file, parse_claims, str(file), MAX_FILE)


def refuse_huge(file: str, work: Workload, memory_limit: int) -> None:
    """Raises RingloomError if inputs and results alone need more than `memory_limit` bytes."""
    queries, keys = work.heads * work.seq, work.kv_heads * work.kv_seq
    needed = MIN_COPIES * 8 * work.batch * (queries + keys) * (work.head_dim + work.v_head_dim)
    if needed > memory_limit:
        raise RingloomError(
            f"{file}: {work.seq} tokens of {work.heads} heads need {size(needed)} in float64, more"
            f" than the {size(memory_limit)} of --memory: use a smaller --seq"
        )


def document(file: str, case: Case, verdict: Verdict, self_result: SelfCheck) -> dict[str, Any]:
    """Returns the JSON object of a verdict; errors that are not finite become null."""
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
        "self_check": self_result.passed,
        "output": self_result.text,
    }
