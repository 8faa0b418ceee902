"""Checks that calls do not depend on earlier calls or on freed memory.

It asks, in this order: another sample; the sample three times; the sample after memory was filled
with NaN; and after all other questions, the other sample again. If only the first answer to the
sample differs, it depends on the call before.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ringloom.runtimes.arrays import Array
from ringloom.runtimes.audit.case import Case, Ints
from ringloom.runtimes.audit.place import Place
from ringloom.runtimes.audit.probes.levels import halves, leveled
from ringloom.runtimes.audit.probes.questions import Answer, Bins, Question
from ringloom.runtimes.audit.probes.samples import same, sample
from ringloom.runtimes.audit.report import KINDS, Fault

Ask = Callable[[Question], Answer]
MOVED = 0.01  # minimum change of a row's weight


@dataclass(frozen=True, slots=True)
class History:
    """Faults of consecutive calls, and the answer to the sample that is to be judged.

    `first`: the answer to the other sample. `stale`: answers depend on the call before, so only the
    second of two equal calls counts.
    """

    faults: tuple[Fault, ...]
    answer: Answer
    first: Answer
    stale: bool


def history(case: Case, ask: Ask, at: Place) -> History:
    """Asks one sample several times after another sample."""
    first = ask(sample(case, case.seed + 1))
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
        faults += [_stale(case, ask, at)]
    elif not same(case, at, one, two) or not same(case, at, two, three):
        said = "the same inputs gave different results in two calls"
        faults += [Fault("changes between runs", f"{said}: {KINDS['changes between runs']}")]
    return History(tuple(faults), two, first, stale and not spoiled)


def later(case: Case, ask: Ask, at: Place, past: History) -> tuple[Fault, ...]:
    """Returns the fault of an answer that earlier calls changed, if there is no other fault."""
    if past.faults or same(case, at, past.first, ask(sample(case, case.seed + 1))):
        return ()
    said = "the same inputs gave other results in the first call and in the last"
    return (Fault("depends on calls", f"{said}: {KINDS['depends on calls']}"),)


def finite(at: Place, answer: Answer) -> bool:
    """Returns True if rows with keys have no NaN or infinity."""
    return bool(np.isfinite(answer.out[:, :, at.rows[at.wanted.any(axis=1)]]).all())


def settled(ask: Ask, times: int) -> Ask:
    """Returns an `ask` that repeats each question and returns the last answer."""

    def asking(question: Question) -> Answer:
        for _ in range(times - 1):
            ask(question)
        return ask(question)

    return asking


def _stale(case: Case, ask: Ask, at: Place) -> Fault:
    """Returns the fault of results that depend on the call before.

    Stale keys or values are in use where the second answer equals that of the call before.
    """
    bins = halves(at, case.work.v_head_dim)
    values = Question(v=(Bins(bins),))
    for before, question in ((Question(), values), (values, leveled(case, bins % 2.0, bins))):
        ask(before)
        old, late, new = (_shares(ask(x), at) for x in (before, question, question))
        if before is values:  # keys alone differ: by their scores, halves of a rank do
            old, late, new = map(_halves, (old, late, new))
        kept = (np.abs(late - new) > MOVED) & (np.abs(late - old) <= MOVED)
        if kept.any():
            return _kept(at, bins, kept)
    said = "the results of a call depend on the one before"
    return Fault("depends on calls", f"{said}: {KINDS['depends on calls']}")


def _shares(answer: Answer, at: Place) -> Array:
    return answer.out[:, :, at.rows].astype(np.float64)


def _halves(shares: Array) -> Array:
    """Returns, for each pair of columns, the share of the first; other entries are 0."""
    pairs = shares[..., : shares.shape[-1] // 2 * 2]
    one, other = pairs[..., ::2], pairs[..., 1::2]
    both = one + other
    first = np.divide(one, both, out=np.zeros_like(one), where=both > MOVED)
    return np.stack([first, np.zeros_like(first)], axis=-1).reshape(pairs.shape)


def _kept(at: Place, bins: Ints, kept: Array) -> Fault:
    """Returns the fault of keys and values of an earlier call; `kept`: [.., rows, bins]."""
    moved = np.argwhere(kept)
    batch, head, row, part = moved[np.lexsort((moved[:, 3], moved[:, 2]))[0]].tolist()
    key = int(np.argmax((bins == part) & at.wanted[row]))
    rank = int(at.key_ranks[key])
    query = f"query {at.queries[row]} (rank {at.query_ranks[row]}, row {at.query_indices[row]})"
    return Fault(
        "stale keys",
        f"{query} attends keys or values of rank {rank} that an earlier call had:"
        f" {KINDS['stale keys']}",
        query=int(at.queries[row]),
        key=int(at.keys[key]),
        query_rank=int(at.query_ranks[row]),
        key_rank=rank,
        query_index=int(at.query_indices[row]),
        key_index=int(at.key_indices[key]),
        batch=batch,
        head=head,
        computed=0.0,
        wanted=1.0,
        pairs=len({tuple(x) for x in moved[:, 2:].tolist()}),
    )
