"""Audits: what any attention on several ranks really computes, found by asking it alone.

    case         what to audit: the attention, the ranks, and their positions
    place        rows and columns of a matrix, and what is wanted of it
    probes/      questions and answers: weights of pairs, layouts, scores, samples
    faults/      what is wrong with them, where it shows first, and its kind
    running/     functions on ranks, what they send, and where they wait
    examining    all probes in their order
    report       the verdict

An attention is linear in V and, for equal scores, an average: with indicators of positions as
values, a call shows how often queries attend keys. No code of the implementation is looked at.
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

    `attend(q, k, v)` takes and returns local shards, [batch, heads, tokens, head_dim]; it is given
    `group` if it has such a parameter. Of what it returns beside out nothing is looked at: a
    log-sum-exp has another base and another shape in each library. Every rank calls this, and gets
    the same report. One rank needs no process group. Raises RankError where ranks wait longer than
    `timeout` seconds, and RingloomError for a group of another number of ranks.
    """
    from ringloom.runtimes.audit.examining import examine
    from ringloom.runtimes.audit.running.on_torch import Asker, lead

    report: Report = lead(Asker(attend, case, rank, group, timeout), examine)
    return report
