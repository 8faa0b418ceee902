"""Audits any attention function: the pairs it attends and the bytes it sends.

cases      parses the layout of an audit       sent       compares bytes with ring attention
verdict    the result, as values and JSON      page       the result on a terminal
pictures   matrices as images                  html       the result as an HTML page
adapters   wraps functions of other libraries as `attend(q, k, v)`
"""

from collections.abc import Callable
from typing import Any

from ringloom.auditing.cases import case_of
from ringloom.auditing.verdict import Audit
from ringloom.planner.errors import RingloomError
from ringloom.planner.workload import Workload

PASSES = "forward", "both"
TIMEOUT = 300.0  # seconds that ranks wait for each other


def audit(
    attend: Callable[..., Any],
    work: Workload,
    *,
    ranks: int = 1,
    layout: Any = "contiguous",
    rank: int = 0,
    group: Any = None,
    pass_: str = "both",
    seed: int = 0,
    timeout: float = TIMEOUT,
) -> Audit:
    """Probes which pairs an attention function attends, and how exact its results are.

    Every rank of a torch process group calls this with its own `rank` and gets the same verdict.
    `attend(q, k, v)` takes local shards [batch, heads, tokens, head_dim] of the workload's dtype
    and returns out or (out, ...); it receives the process group if it has a parameter `group`.
    layout: a layout name, the positions of each rank's tokens (-1 for padding), or "detect".
    pass_: "both" also probes gradients. timeout: seconds that ranks wait for each other. Raises
    RingloomError for an invalid case, and RankError if a rank does not join in time.
    """
    if pass_ not in PASSES:
        raise RingloomError(f"pass_ must be {' or '.join(PASSES)}, not {pass_!r}")
    from ringloom.runtimes.audit import audit_rank

    case = case_of(work, ranks, layout, passes=pass_, seed=seed)
    report = audit_rank(attend, case, rank=rank, group=group, timeout=timeout)
    return Audit(case, report, getattr(attend, "__name__", "attend"))
