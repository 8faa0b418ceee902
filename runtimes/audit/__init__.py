"""Audits any attention on several ranks as a black box, to find the pairs that it computes.

    case         defines the audited attention, the ranks, and their positions
    grid         describes the rows and columns of a matrix, and the expected mask
    probes/      asks questions: weights of pairs, layouts, scores, samples
    faults/      locates and classifies faults in the answers
    running/     calls functions on ranks, counts their messages, and shows where ranks wait
    examining    runs all probes in order
    report       defines the verdict

Attention is linear in V, and an average for equal scores. So if values are indicators of positions,
the output of a call shows how often queries attend to keys. Audits never read the code of the
implementation.
"""

from collections.abc import Callable
from typing import Any

from ringloom.runtimes.audit.case import Case as Case
from ringloom.runtimes.audit.report import KINDS as KINDS
from ringloom.runtimes.audit.report import Computed as Computed
from ringloom.runtimes.audit.report import Fault as Fault
from ringloom.runtimes.audit.report import Measured as Measured
from ringloom.runtimes.audit.report import Report as Report
from ringloom.runtimes.audit.running.launching import launch as launch

TIMEOUT = 300.0  # seconds that ranks wait for each other


def audit_rank(
    attend: Callable[..., Any],
    case: Case,
    *,
    rank: int = 0,
    group: Any = None,
    timeout: float = TIMEOUT,
) -> Report:
    """Audits a torch function on every rank of an initialised process group.

    `attend(q, k, v)` takes and returns local shards, [batch, heads, tokens, head_dim]. It receives
    `group` if it has a parameter of this name. Further results, such as a log-sum-exp, are ignored,
    because their base and shape depend on the library. Call this function on every rank; all ranks
    receive the same report. A single rank needs no process group. Raises RankError if ranks wait
    longer than `timeout` seconds, and RingloomError if the group has another number of ranks.
    """
    from ringloom.runtimes.audit.examining import examine
    from ringloom.runtimes.audit.running.on_torch import Asker, lead

    report: Report = lead(Asker(attend, case, rank, group, timeout), examine)
    return report
