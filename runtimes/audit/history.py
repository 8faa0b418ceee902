"""Calls that must not depend on each other: stale keys, changes between runs, memory.

    another sample, the sample, the sample again, once more, and after memory was filled with NaN

An answer that is another one the first time, and then stays, depends on the call before.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from runtimes.audit.case import Case
from runtimes.audit.questions import Answer, Bins, Question
from runtimes.audit.report import KINDS, Fault
from runtimes.audit.samples import same, sample
from runtimes.audit.shapes import Place

Ask = Callable[[Question], Answer]
MOVED = 0.01  # of a row's weight


@dataclass(frozen=True, slots=True)
class History:
    """Faults of calls in a row, and the answer to the sample that is to be judged.

    `stale`: answers depend on the call before, and a second call of the same settles them.
    """

    faults: tuple[Fault, ...]
    answer: Answer
    stale: bool


def history(case: Case, ask: Ask, at: Place) -> History:
    """Asks one sample several times, after others."""
    ask(sample(case, case.seed + 1))
    answers = [ask(sample(case, case.seed, watch=n == 1)) for n in range(3)]
    poisoned = ask(sample(case, case.seed, poison=True))
    one, two, three = answers
    faults = list[Fault]()
    stale = not same(case, at, one, two) and same(case, at, two, three)
    spoiled = not finite(at, poisoned) and any(finite(at, x) for x in answers)
    if spoiled or (same(case, at, two, three) and not (stale or same(case, at, three, poisoned))):
        said = "the same inputs gave other results after freed memory was filled with NaN"
        faults += [Fault("depends on memory", f"{said}: {KINDS['depends on memory']}")]
    elif stale:
        faults += _stale(case, ask, at)
    elif not same(case, at, one, two) or not same(case, at, two, three):
        said = "the same inputs gave different results in two calls"
        faults += [Fault("changes between runs", f"{said}: {KINDS['changes between runs']}")]
    return History(tuple(faults), two, stale and not spoiled)


def finite(at: Place, answer: Answer) -> bool:
    """Returns True for results without NaN and infinity, in rows that see a key."""
    return bool(np.isfinite(answer.out[:, :, at.rows[at.wanted.any(axis=1)]]).all())


def settled(ask: Ask, times: int) -> Ask:
    """Returns an `ask` that asks everything several times and returns the last answer."""

    def asking(question: Question) -> Answer:
        for _ in range(times - 1):
            ask(question)
        return ask(question)

    return asking


def _stale(case: Case, ask: Ask, at: Place) -> Iterator[Fault]:
    """Yields the fault, with the rank whose values are of another call where values show it."""
    bins = at.key_ranks % case.work.v_head_dim
    question = Question(v=(Bins(bins),))
    ask(Question())
    before, after = (ask(question).out[:, :, at.rows] for _ in range(2))
    moved = np.argwhere(np.abs(after - before) > MOVED)
    if not len(moved):
        said = "the results of a call depend on the inputs of the one before"
        yield Fault("stale keys", f"{said}: {KINDS['stale keys']}")
        return
    batch, head, row, part = moved[np.lexsort((moved[:, 3], moved[:, 2]))[0]].tolist()
    key = int(np.flatnonzero((bins == part) & at.wanted[row])[0]) if at.wanted[row].any() else 0
    query = f"query {at.queries[row]} (rank {at.query_ranks[row]}, row {at.query_indices[row]})"
    yield Fault(
        "stale keys",
        f"{query} attends values of rank {part} that an earlier call had: {KINDS['stale keys']}",
        query=int(at.queries[row]),
        key=int(at.keys[key]),
        query_rank=int(at.query_ranks[row]),
        key_rank=int(part),
        query_index=int(at.query_indices[row]),
        key_index=int(at.key_indices[key]),
        batch=batch,
        head=head,
        computed=0.0,
        wanted=1.0,
        pairs=len({tuple(x) for x in moved[:, 2:].tolist()}),
    )
