"""Running plans on random arrays, for the command line."""

from typing import Any

from planner.errors import RingloomError
from planner.plans import Plans
from planner.workload import Workload
from ringloom.recording import record
from runtimes.arrays import draw, draw_sinks
from runtimes.backends import run
from simulator.chrome_trace import trace_file

LARGEST = 4 << 30  # bytes of one dense score matrix


def run_random(
    plans: Plans, backend: str, seed: int, trace: str | None = None
) -> dict[str, list[int]]:
    """Run a plan on random arrays of its workload; returns the shapes of the results.

    The run is recorded, and the recording written to `trace`, where that is given.
    """
    forward_only = plans.backward is None
    q, k, v, dout = draw(plans.workload, seed)
    given: dict[str, Any] = {"dout": None if forward_only else dout, "backend": backend}
    given["sinks"] = draw_sinks(plans.workload, seed)
    if trace is None:
        outputs = run(plans, q, k, v, **given)
    else:
        trace_file(trace)  # raises before the run if it cannot be written
        outputs, recording = record(plans, q, k, v, **given)
        recording.save(trace)
    results = (outputs,) if forward_only else outputs
    names = ("out", "dq", "dk", "dv", "dsinks")
    return {name: list(x.shape) for name, x in zip(names, results, strict=False)}


def refuse_huge(work: Workload) -> None:
    """Raises RingloomError if the dense scores, heads x seq x kv_seq, would not fit in memory."""
    scores = work.batch * work.heads * work.seq * work.kv_seq * 8
    if scores > LARGEST:
        raise RingloomError(
            f"{work.seq} x {work.kv_seq} tokens and {work.heads} heads make dense scores of"
            f" {scores / 2**30:.3g} GiB, more than the {LARGEST / 2**30:.3g} GiB that run takes:"
            " give a smaller --seq; verification itself has no such limit"
        )
