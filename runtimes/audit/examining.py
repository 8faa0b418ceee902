"""Runs all probes in order and reports their results."""

import time
from dataclasses import replace
from typing import Protocol

import numpy as np

from ringloom.planner.errors import RingloomError
from ringloom.runtimes.arrays import Array
from ringloom.runtimes.audit.case import Case
from ringloom.runtimes.audit.faults.verdicts import judge
from ringloom.runtimes.audit.place import Place, place
from ringloom.runtimes.audit.probes import levels
from ringloom.runtimes.audit.probes.detecting import detect
from ringloom.runtimes.audit.probes.history import history, later, settled
from ringloom.runtimes.audit.probes.loud import loud, loud_gradients
from ringloom.runtimes.audit.probes.probing import probe
from ringloom.runtimes.audit.probes.questions import Answer, Question
from ringloom.runtimes.audit.probes.samples import measured, said_faults, sample_faults
from ringloom.runtimes.audit.probes.variants import variants
from ringloom.runtimes.audit.report import Fault, Report
from ringloom.runtimes.audit.running.asking import EndedError

COMMON = "a factor common to all keys of a row: outputs show multiplicities in their ratio alone"


ENDS = "wrong shape", "crash"


class Asks(Protocol):
    """Interface of a function on ranks to which questions can be put."""

    case: Case
    calls: int

    def ask(self, question: Question) -> Answer:
        """Returns the answer of all ranks."""

    def change(self, case: Case) -> None:
        """Replaces the case."""


def examine(asker: Asks) -> Report:
    """Asks all questions; returns the report, without a verdict if probing is impossible."""
    start = time.monotonic()
    try:
        report = _examined(asker)
    except EndedError as error:
        report = Report(error.faults)
    except RingloomError as error:
        report = Report(could_not_run=str(error))
    return replace(report, calls=asker.calls, seconds=time.monotonic() - start)


def _examined(asker: Asks) -> Report:
    def ask(question: Question) -> Answer:
        answer = asker.ask(question)
        if any(kind in ENDS for _, kind, _ in answer.said):
            raise EndedError(said_faults(answer))
        return answer

    asking: levels.Ask = ask
    case, alike = asker.case, tuple[str, ...]()
    if not (given := case.has_positions):
        detected = detect(case, ask, asker.change)
        case, alike = detected.case, detected.alike
        asker.change(case)
    at = place(case)
    past = history(case, ask, at)
    if past.stale:
        asking = settled(ask, max(2, case.steps))
    seen = probe(case, asking, case.passes == "both")
    probed, shown, wanted = judge(case, seen)
    forward_fails = any(fault.pass_ == "forward" for fault in probed)
    if scores := [] if forward_fails else leveled(case, asking, at):  # they scale gradients, too
        probed = [*scores, *(x for x in probed if x.kind != "gradient scaled")]
    elif not probed and case.passes == "both" and case.work.softmax_scale:
        probed = [*loud_gradients(case, asking, at)]
    errors = measured(case, at, case.seed, past.answer)
    calls = (*past.faults, *later(case, ask, at, past))
    calls = (*calls, *([] if calls or probed else variants(case, ask, at, past.answer)))
    known = bool(probed or calls)
    random = tuple(sample_faults(case, at, case.seed, past.answer, errors, known))
    return Report(
        (*said_faults(past.answer), *calls, *probed, *random),
        wanted,
        tuple(shown),
        errors,
        layout=None if given else case.q,
        sent=_bytes(case, past.answer),
        invisible=(*alike, *_unseen(case, seen.blind[at.rows], at.wanted)),
    )


def leveled(case: Case, ask: levels.Ask, at: Place) -> list[Fault]:
    """Returns the first fault that shows with unequal scores."""
    for look in (levels.heads, levels.scale, levels.merges, loud):
        if faults := [*look(case, ask, at)]:
            return faults
    return []


def _bytes(case: Case, answer: Answer) -> dict[str, Array]:
    """Returns the bytes between ranks in a call, by pass: [ranks, ranks]."""
    if answer.traffic is None:
        return {}
    sent = {
        name: np.zeros((case.ranks, case.ranks), np.int64)
        for name in ("forward", "backward")[: 1 + (case.passes == "both")]
    }
    for (name, source, destination), size in answer.traffic.items():
        if max(source, destination) < case.ranks:
            sent[name][source, destination] += size
    return sent


def _unseen(case: Case, blind: Array, wanted: Array) -> list[str]:
    """Returns sentences on what probing cannot show."""
    said = [COMMON]
    if case.passes == "both" and (pairs := int((blind & wanted).sum())):
        number = f"{pairs} pair{'s' * (pairs != 1)}"
        where = " in rows of one key, or nearly so" * bool(case.work.softmax_scale)
        said.append(f"dq and dk of {number}{where}: they are zero in exact attention, too")
    return said
