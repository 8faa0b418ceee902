"""Checks that calls do not depend on earlier calls or on freed memory.

Asks, in this order: another sample; the sample three times; the sample after memory was filled with
NaN; and after all other questions, the other sample again. If only the first answer to the sample
differs, that answer depends on the previous call.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ringloom.runtimes.arrays import Array
from ringloom.runtimes.audit.case import Case, Ints
from ringloom.runtimes.audit.grid import Grid
from ringloom.runtimes.audit.probes.levels import halves, with_scores
from ringloom.runtimes.audit.probes.questions import Answer, Bins, Question
from ringloom.runtimes.audit.probes.samples import is_same, sample
from ringloom.runtimes.audit.report import KINDS, Fault

Ask = Callable[[Question], Answer]
MIN_CHANGE = 0.01  # of a row's weight


@dataclass(frozen=True, slots=True)
class History:
    """Faults of consecutive calls, and the answer to the sample that is to be judged.

    `first`: the answer to the other sample. `stale`: answers depend on the previous call, so only
    the second of two equal calls is judged.
    """

    faults: tuple[Fault, ...]
    answer: Answer
    first: Answer
    stale: bool


def check_history(case: Case, ask: Ask, grid: Grid) -> History:
    """Asks one sample several times after another sample."""
    other = ask(sample(case, case.seed + 1))
    answers = [ask(sample(case, case.seed, watch=n == 1)) for n in range(3)]
    poisoned = ask(sample(case, case.seed, poison=True))
    first, second, third = answers
    faults = list[Fault]()
    first_same, last_same = is_same(case, grid, first, second), is_same(case, grid, second, third)
    is_stale = not first_same and last_same
    is_spoiled = not is_finite(grid, poisoned) and any(is_finite(grid, x) for x in answers)
    if is_spoiled or (last_same and not is_stale and not is_same(case, grid, third, poisoned)):
        text = "the same inputs gave different results after freed memory was filled with NaN"
        faults += [Fault("depends on memory", f"{text}: {KINDS['depends on memory']}")]
    elif is_stale:
        faults += [_stale_fault(case, ask, grid)]
    elif not first_same or not last_same:
        text = "the same inputs gave different results in two calls"
        faults += [Fault("changes between runs", f"{text}: {KINDS['changes between runs']}")]
    return History(tuple(faults), second, other, is_stale and not is_spoiled)


def check_last_call(case: Case, ask: Ask, grid: Grid, history: History) -> tuple[Fault, ...]:
    """Returns the fault of an answer that earlier calls changed, unless there are other faults."""
    if history.faults or is_same(case, grid, history.first, ask(sample(case, case.seed + 1))):
        return ()
    text = "the same inputs gave different results in the first and in the last call"
    return (Fault("depends on calls", f"{text}: {KINDS['depends on calls']}"),)


def is_finite(grid: Grid, answer: Answer) -> bool:
    """Returns True if rows with keys have no NaN or infinity."""
    return bool(np.isfinite(answer.out[:, :, grid.rows[grid.wanted.any(axis=1)]]).all())


def repeat(ask: Ask, times: int) -> Ask:
    """Returns an `ask` that repeats each question and returns the last answer."""

    def ask_repeatedly(question: Question) -> Answer:
        for _ in range(times - 1):
            ask(question)
        return ask(question)

    return ask_repeatedly


def _stale_fault(case: Case, ask: Ask, grid: Grid) -> Fault:
    """Returns the fault of results that depend on the previous call.

    Keys or values are stale where the first answer to a new question equals the previous answer.
    """
    bins = halves(grid, case.work.v_head_dim)
    values = Question(v=(Bins(bins),))
    for before, question in ((Question(), values), (values, with_scores(case, bins % 2.0, bins))):
        ask(before)
        previous, first, second = (_shares(ask(x), grid) for x in (before, question, question))
        if before is values:  # only keys differ, by the scores of the two halves of a rank
            previous, first, second = map(_halves, (previous, first, second))
        is_stale = (np.abs(first - second) > MIN_CHANGE) & (np.abs(first - previous) <= MIN_CHANGE)
        if is_stale.any():
            return _stale_keys_fault(grid, bins, is_stale)
    text = "the results of a call depend on the previous call"
    return Fault("depends on calls", f"{text}: {KINDS['depends on calls']}")


def _shares(answer: Answer, grid: Grid) -> Array:
    return answer.out[:, :, grid.rows].astype(np.float64)


def _halves(shares: Array) -> Array:
    """Returns the share of the first column in each pair of columns; other entries are 0."""
    pairs = shares[..., : shares.shape[-1] // 2 * 2]
    first, second = pairs[..., ::2], pairs[..., 1::2]
    total = first + second
    share = np.divide(first, total, out=np.zeros_like(first), where=total > MIN_CHANGE)
    return np.stack([share, np.zeros_like(share)], axis=-1).reshape(pairs.shape)


def _stale_keys_fault(grid: Grid, bins: Ints, stale: Array) -> Fault:
    """Returns the fault of keys and values of an earlier call; `stale`: [.., rows, bins]."""
    cells = np.argwhere(stale)
    batch, head, row, part = cells[np.lexsort((cells[:, 3], cells[:, 2]))[0]].tolist()
    key = int(np.argmax((bins == part) & grid.wanted[row]))
    rank = int(grid.key_ranks[key])
    query = grid.query_name(row)
    return Fault(
        "stale keys",
        f"{query} attends to keys or values that rank {rank} had in an earlier call:"
        f" {KINDS['stale keys']}",
        query=int(grid.queries[row]),
        key=int(grid.keys[key]),
        query_rank=int(grid.query_ranks[row]),
        key_rank=rank,
        query_index=int(grid.query_indices[row]),
        key_index=int(grid.key_indices[key]),
        batch=batch,
        head=head,
        computed=0.0,
        wanted=1.0,
        pairs=len({tuple(x) for x in cells[:, 2:].tolist()}),
    )
