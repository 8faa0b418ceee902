"""record(plan, q, k, v)   a run of the oracle: virtual ranks, which take turns on one processor."""

from planner.ir import Plan
from planner.planning import Pair
from runtimes import oracle
from runtimes.arrays import Array
from runtimes.recording.events import Recorded, watched

Results = Array | tuple[Array, ...]


def record(
    plan: Plan | Pair, q: Array, k: Array, v: Array, dout: Array | None = None
) -> tuple[Results, list[Recorded]]:
    """What `runtimes.oracle.run` returns, and what happened, pass by pass."""
    with watched() as log:
        results = oracle.run(plan, q, k, v, dout)
    return results, log.passes
