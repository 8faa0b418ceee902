"""Runs all probes in order and reports their results."""

import time
from dataclasses import replace
from typing import Protocol

import numpy as np

from ringloom.planner.errors import RingloomError
from ringloom.runtimes.arrays import Array
from ringloom.runtimes.audit.case import Case
from ringloom.runtimes.audit.faults.verdicts import judge
from ringloom.runtimes.audit.grid import Grid, grid_of
from ringloom.runtimes.audit.probes import levels
from ringloom.runtimes.audit.probes.detecting import detect
from ringloom.runtimes.audit.probes.history import check_history, check_last_call, repeat
from ringloom.runtimes.audit.probes.loud import check_large_gradients, check_large_scores
from ringloom.runtimes.audit.probes.probing import probe
from ringloom.runtimes.audit.probes.questions import Answer, Question
from ringloom.runtimes.audit.probes.samples import complaint_faults, measure, sample_faults
from ringloom.runtimes.audit.probes.variants import check_variants
from ringloom.runtimes.audit.report import Fault, Report
from ringloom.runtimes.audit.running.asking import EndedError

COMMON_FACTOR = "a common factor of all keys of a row: outputs show only ratios of multiplicities"
ENDS = "wrong shape", "crash"  # kinds of faults after which no results exist


class Askable(Protocol):
    """A function on ranks, as the interface that probes use."""

    case: Case
    calls: int

    def ask(self, question: Question) -> Answer:
        """Returns the answer of all ranks."""

    def change(self, case: Case) -> None:
        """Replaces the case."""


def examine(asker: Askable) -> Report:
    """Asks all questions; returns the report, without a verdict if probing is impossible."""
    start = time.monotonic()
    try:
        report = _examine(asker)
    except EndedError as error:
        report = Report(error.faults)
    except RingloomError as error:
        report = Report(could_not_run=str(error))
    return replace(report, calls=asker.calls, seconds=time.monotonic() - start)


def _examine(asker: Askable) -> Report:
    def ask_once(question: Question) -> Answer:
        answer = asker.ask(question)
        if any(kind in ENDS for _, kind, _ in answer.complaints):
            raise EndedError(complaint_faults(answer))
        return answer

    ask: levels.Ask = ask_once
    case, ambiguities = asker.case, tuple[str, ...]()
    if not (has_positions := case.has_positions):
        detected = detect(case, ask, asker.change)
        case, ambiguities = detected.case, detected.ambiguities
        asker.change(case)
    grid = grid_of(case)
    history = check_history(case, ask, grid)
    if history.stale:
        ask = repeat(ask_once, max(2, case.steps))
    result = probe(case, ask, case.passes == "both")
    faults, matrices, wanted = judge(case, result)
    forward_fails = any(fault.pass_ == "forward" for fault in faults)
    if score_faults := [] if forward_fails else check_scores(case, ask, grid):
        # wrong scores also scale gradients
        faults = [*score_faults, *(x for x in faults if x.kind != "gradient scaled")]
    elif not faults and case.passes == "both" and case.work.softmax_scale:
        faults = [*check_large_gradients(case, ask, grid)]
    errors = measure(case, grid, case.seed, history.answer)
    calls = (*history.faults, *check_last_call(case, ask_once, grid, history))
    calls = (
        *calls,
        *([] if calls or faults else check_variants(case, ask_once, grid, history.answer)),
    )
    known = bool(faults or calls)
    random = tuple(sample_faults(case, grid, case.seed, history.answer, errors, known))
    return Report(
        (*complaint_faults(history.answer), *calls, *faults, *random),
        wanted,
        tuple(matrices),
        errors,
        layout=None if has_positions else case.q,
        sent=_bytes_sent(case, history.answer),
        invisible=(*ambiguities, *_limitations(case, result.blind[grid.rows], grid.wanted)),
    )


def check_scores(case: Case, ask: levels.Ask, grid: Grid) -> list[Fault]:
    """Returns the first fault that shows with unequal scores, or []."""
    checks = levels.check_heads, levels.check_scale, levels.check_merges, check_large_scores
    for check in checks:
        if faults := [*check(case, ask, grid)]:
            return faults
    return []


def _bytes_sent(case: Case, answer: Answer) -> dict[str, Array]:
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


def _limitations(case: Case, blind: Array, wanted: Array) -> list[str]:
    """Returns descriptions of errors that probing cannot show."""
    texts = [COMMON_FACTOR]
    if case.passes == "both" and (pairs := int((blind & wanted).sum())):
        number = f"{pairs} pair{'s' * (pairs != 1)}"
        rows = " in rows with almost all weight on one key" * bool(case.work.softmax_scale)
        texts.append(f"dq and dk of {number}{rows}: exact attention has zeros there, too")
    return texts
