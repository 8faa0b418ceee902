"""Audits: what any attention on several ranks really computes, found by asking it alone.

    case         what to audit: the attention, the ranks, and their positions
    questions    inputs of a call, and answers
    slices       the questions of slices of queries and keys
    screening    slices whose weights are not as expected
    probing      weights of all pairs, from outputs and gradients
    detecting    positions of local rows that are not given
    levels       heads, the scale, and merging, from scores of a few levels
    samples      random inputs against dense attention
    history      calls that must not depend on each other
    verdicts     what is wrong with them, and where it shows first
    report       the verdict
    launching    ranks that are started here, and end in any case

An attention is linear in V and, for equal scores, an average: with indicators of positions as
values, a call shows how often queries attend keys. No code of the implementation is looked at.
"""

from collections.abc import Callable
from typing import Any

from runtimes.audit.case import Case as Case
from runtimes.audit.launching import launch as launch
from runtimes.audit.report import KINDS as KINDS
from runtimes.audit.report import Computed as Computed
from runtimes.audit.report import Fault as Fault
from runtimes.audit.report import Measured as Measured
from runtimes.audit.report import Report as Report

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
    from runtimes.audit.examining import examine
    from runtimes.audit.on_torch import Asker, lead

    report: Report = lead(Asker(attend, case, rank, group, timeout), examine)
    return report
