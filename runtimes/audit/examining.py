"""The examination: all probes in their order, and the report of what they showed."""

import time
from dataclasses import replace
from typing import Any, Protocol

from planner.errors import RingloomError
from runtimes.audit.case import Case
from runtimes.audit.probing import probe
from runtimes.audit.questions import Answer, Question
from runtimes.audit.report import Fault, Report
from runtimes.audit.verdicts import judge


class Asks(Protocol):
    """Whatever can be asked: a function on ranks."""

    case: Case
    calls: int

    def ask(self, question: Question) -> Answer:
        """Returns the answer of all ranks."""

    def change(self, case: Case) -> None:
        """Goes on with another case."""


def examine(asker: Asks) -> Report:
    """Asks all questions and returns the report; without a verdict where it cannot be probed."""
    start = time.monotonic()
    try:
        report = _examined(asker)
    except RingloomError as error:
        report = Report(could_not_run=str(error))
    return replace(report, calls=asker.calls, seconds=time.monotonic() - start)


def _examined(asker: Asks) -> Report:
    case = asker.case
    seen = probe(case, asker.ask, case.passes == "both")
    faults, shown, wanted = judge(case, seen)
    return Report(tuple(faults), wanted, tuple(shown), invisible=unseen(case))


def unseen(case: Case) -> tuple[str, ...]:
    """Says what probing cannot see in any attention of this kind."""
    return (
        "a factor common to all keys of a row: an output shows multiplicities in their ratio alone",
    )


def stopped(fault: Fault, **more: Any) -> Report:
    """Returns the report of an audit that a fault ended."""
    return Report(faults=(fault,), **more)
