"""Scores of a few levels: which head and batch row is read, the scale, and how partials merge.

    heads     values that tell lanes apart, at equal scores
    scale     keys at even and odd positions differ in their score by about 1
    merges    the keys of every rank, in halves, have a score of their own
    overflow  the same with scores up to 128, beyond what exp can hold in float32

All of them compare shares of a row with what the wanted mask gives, so they say something only
where probing at equal scores saw no fault.
"""

from collections.abc import Callable, Iterator

import numpy as np

from runtimes.arrays import Array
from runtimes.audit.case import Case, Ints
from runtimes.audit.place import Place
from runtimes.audit.probes.questions import Answer, Bins, Codes, Level, Question
from runtimes.audit.probes.weights import ROUGH
from runtimes.audit.report import KINDS, Fault

Ask = Callable[[Question], Answer]
LOUD = 64.0  # times the levels of merges: past 88, where exp overflows in float32
SPREAD = 2.0  # the highest level of scores, and minus the lowest
STEADY = 0.05  # relative spread of a scale that is the same in all rows


def heads(case: Case, ask: Ask, at: Place) -> Iterator[Fault]:
    """Yields the fault of heads, or batch rows, that read values of another one."""
    work, sees = case.work, at.wanted.any(axis=1)
    lanes = work.batch * work.kv_heads
    shares = np.concatenate(
        [
            ask(Question(v=(Codes(start),))).out[:, :, at.rows]
            for start in range(0, lanes, work.v_head_dim)
        ],
        axis=3,
    )[..., :lanes]
    batch, head = np.indices((work.batch, work.heads))
    own = batch * work.kv_heads + head // work.group
    right = np.take_along_axis(shares, own[..., None, None], axis=3)[..., 0]
    wrong = sees & (np.abs(right - 1) > _rough(case))
    for b, h, row in np.argwhere(wrong)[:1].tolist():
        lane = int(np.argmax(shares[b, h, row]))
        other, group = divmod(lane, work.kv_heads)
        kind = "wrong GQA group" if other == b else "wrong batch row"
        read = f"KV head {group} of batch row {other}"
        wanted = f"KV head {h // work.group} of batch row {b}"
        said = f"head {h} of batch row {b} reads {read} instead of {wanted}"
        yield _row_fault(at, kind, said, row, b, h, wrong[b, h])


def scale(case: Case, ask: Ask, at: Place) -> Iterator[Fault]:
    """Yields the fault of another factor on scores."""
    even = np.arange(at.wanted.shape[1]) % 2 == 0
    number = np.stack([at.wanted[:, even].sum(1), at.wanted[:, ~even].sum(1)], axis=1)
    both = number.min(axis=1) > 0
    if not both.any() or not case.work.softmax_scale:
        return
    answer = ask(leveled(case, even.astype(float), np.where(even, 0, 1)))
    shares = answer.out[:, :, at.rows[both], :2].astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        odds = np.log(shares[..., 0] / shares[..., 1] * (number[both, 1] / number[both, 0]))
    step, wanted = _step(case), _step(case) * case.work.softmax_scale
    ratio = odds / wanted
    wrong = np.abs(ratio - 1) > (10 if case.work.dtype in ROUGH else 1) * 0.01
    for b, h in np.argwhere(wrong.any(axis=2))[:1].tolist():
        middle = float(np.median(ratio[b, h]))
        row = int(np.flatnonzero(both)[np.flatnonzero(wrong[b, h])[0]])
        if np.all(np.abs(ratio[b, h] - middle) <= STEADY * abs(middle) + 1e-3):
            factor = middle * wanted / step
            said = (
                f"head {h} scales scores by {factor:.4g} instead of {case.work.softmax_scale:.4g}"
            )
            yield _row_fault(at, "wrong scale", said, row, b, h, wrong[b, h])
        else:
            said = f"head {h} weighs keys of different scores wrongly"
            yield _row_fault(at, "unmerged partials", said, row, b, h, wrong[b, h])


def merges(case: Case, ask: Ask, at: Place, loud: bool = False) -> Iterator[Fault]:
    """Yields the fault of partial results that are not merged by their sums."""
    bins = halves(at, case.work.v_head_dim)
    levels = np.round(4 * SPREAD * np.cos(2.0 + 2.4 * np.arange(bins.max() + 1))) / 4
    times = LOUD if loud else 1.0
    answer = ask(leveled(case, levels[bins], bins, times))
    shares = answer.out[:, :, at.rows, : len(levels)].astype(np.float64)
    number = np.stack([at.wanted[:, bins == n].sum(1) for n in range(len(levels))], axis=1)
    scores = levels * times * _step(case) * case.work.softmax_scale
    top = np.where(number > 0, scores, -np.inf).max(axis=1, keepdims=True)
    weight = number * np.exp(np.minimum(scores - np.where(np.isinf(top), 0, top), 0))
    wanted = weight / np.maximum(weight.sum(axis=1, keepdims=True), 1e-300)
    off = np.abs(shares - wanted)
    wrong = ~(off <= 2 * _rough(case)).all(axis=3) & (number.sum(axis=1) > 0)
    for b, h, row in np.argwhere(wrong)[:1].tolist():
        if not np.isfinite(shares[b, h, row]).all():
            said = f"head {h} returns NaN or infinity for scores up to {np.abs(scores).max():.3g}"
            yield _row_fault(at, "overflow", said, row, b, h, wrong[b, h])
            return
        part = int(np.argmax(off[b, h, row]))
        rank = int(at.key_ranks[np.flatnonzero(bins == part)[0]])
        got, due = shares[b, h, row, part], wanted[row, part]
        said = f"the keys of rank {rank} have {got:.3g} of a row's weight instead of {due:.3g}"
        kind = "overflow" if loud else "unmerged partials"
        yield _row_fault(at, kind, said, row, b, h, wrong[b, h])


def leveled(case: Case, levels: Array, bins: Ints, times: float = 1.0) -> Question:
    """Returns a question with these scores of columns, in units of about 1, and their bins."""
    ones = np.full(case.side("q").width, _step(case) * times)
    return Question(q=(Level(ones, 0),), k=(Level(levels, 0),), v=(Bins(bins),))


def halves(at: Place, most: int) -> Ints:
    """Returns a number for each half of a rank's keys, [columns]; below `most`, or of ranks."""
    count = np.bincount(at.key_ranks)
    later = at.key_indices * 2 >= count[at.key_ranks]
    bins = at.key_ranks * 2 + later if len(count) * 2 <= most else at.key_ranks
    return np.asarray(np.minimum(bins, most - 1))


def _step(case: Case) -> float:
    """Returns the power of two that brings the scale closest to 1."""
    return float(2.0 ** -round(np.log2(abs(case.work.softmax_scale) or 1.0)))


def _rough(case: Case) -> float:
    return 0.03 if case.work.dtype in ROUGH else 0.005


def _row_fault(
    at: Place, kind: str, said: str, row: int, batch: int, head: int, wrong: Array
) -> Fault:
    query, rank = int(at.queries[row]), int(at.query_ranks[row])
    index, number = int(at.query_indices[row]), int(wrong.sum())
    return Fault(
        kind,
        f"query {query} (rank {rank}, row {index}): {said}; {number} rows of this head are wrong: "
        f"{KINDS[kind]}",
        query=query,
        query_rank=rank,
        query_index=index,
        batch=batch,
        head=head,
        pairs=number,
    )
