"""Checks which head and batch row is read, the scale, and how partial results merge.

    heads     values identify lanes, at equal scores
    scale     scores of keys at even and odd positions differ by about 1
    merges    each half of a rank's keys has its own score

All of them compare weights with those of the wanted mask, so they are meaningful only if probing at
equal scores showed no fault.
"""

from collections.abc import Callable, Iterator

import numpy as np

from ringloom.runtimes.arrays import Array
from ringloom.runtimes.audit.case import Case, Ints
from ringloom.runtimes.audit.place import Place
from ringloom.runtimes.audit.probes.questions import Answer, Bins, Codes, Level, Question
from ringloom.runtimes.audit.probes.weights import ROUGH
from ringloom.runtimes.audit.report import KINDS, Fault

Ask = Callable[[Question], Answer]
SPREAD = 2.0  # levels of scores range from -SPREAD to SPREAD
HELD = 20  # 2^HELD is a product of two float16 numbers, with room for LOUD and levels
FAINT = 0.5  # scores below this cannot measure a scale
STEADY = 0.05  # maximum relative spread of a scale that counts as equal in all rows


def heads(case: Case, ask: Ask, at: Place) -> Iterator[Fault]:
    """Yields the fault of a head or batch row that reads values of another one."""
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
    wrong = sees & (np.abs(right - 1) > rough(case))
    for b, h, row in np.argwhere(wrong)[:1].tolist():
        lane = int(np.argmax(shares[b, h, row]))
        if lane == own[b, h]:
            total = shares[b, h, row, lane]
            said = f"the weights of head {h} of batch row {b} sum to {total:.4g}"
            yield _row_fault(at, "wrong weights", said, row, b, h, wrong[b, h])
            return
        other, group = divmod(lane, work.kv_heads)
        kind = "wrong GQA group" if other == b else "wrong batch row"
        read = f"KV head {group} of batch row {other}"
        wanted = f"KV head {h // work.group} of batch row {b}"
        said = f"head {h} of batch row {b} reads {read} instead of {wanted}"
        yield _row_fault(at, kind, said, row, b, h, wrong[b, h])


def scale(case: Case, ask: Ask, at: Place) -> Iterator[Fault]:
    """Yields the fault of scores with a wrong scale."""
    even = np.arange(at.wanted.shape[1]) % 2 == 0
    number = np.stack([at.wanted[:, even].sum(1), at.wanted[:, ~even].sum(1)], axis=1)
    both, dims = number.min(axis=1) > 0, case.work.v_head_dim
    if not both.any():
        return
    step, wanted = _step(case), _step(case) * case.work.softmax_scale
    if abs(wanted) < FAINT:
        return
    answer = ask(leveled(case, even.astype(float), np.where(even, 0, 1 if dims > 1 else -1)))
    shares = answer.out[:, :, at.rows[both], :2].astype(np.float64)
    one, other = shares[..., 0], shares[..., 1] if dims > 1 else 1 - shares[..., 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        odds = np.log(one / other * (number[both, 1] / number[both, 0]))
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
            kind = "unmerged partials" if case.ranks > 1 else "wrong weights"
            yield _row_fault(at, kind, said, row, b, h, wrong[b, h])


def merges(case: Case, ask: Ask, at: Place) -> Iterator[Fault]:
    """Yields the fault of partial results that are merged with wrong weights."""
    yield from compared(case, ask, at, spread(parts(case, at)))


def compared(case: Case, ask: Ask, at: Place, levels: Array, times: float = 1.0) -> Iterator[Fault]:
    """Yields the fault of rows whose weights do not follow the scores of parts, `times` `levels`.

    Values can show one part per dimension.
    """
    bins, dims = parts(case, at), min(len(levels), case.work.v_head_dim)
    answer = ask(leveled(case, levels[bins], np.where(bins < dims, bins, -1), times))
    shares = answer.out[:, :, at.rows, :dims].astype(np.float64)
    scores = levels * times * _step(case) * case.work.softmax_scale
    wanted = shares_of(at, bins, scores)[:, :dims]
    off = np.abs(shares - wanted)
    wrong = np.asarray(~(off <= 2 * rough(case)).all(axis=3) & at.wanted.any(axis=1))
    for b, h, row in np.argwhere(wrong)[:1].tolist():
        highest = f"scores up to {np.abs(scores).max():.3g}"
        if not np.isfinite(shares[b, h, row]).all():
            said = f"head {h} returns NaN or infinity for {highest}"
            yield _row_fault(at, "overflow", said, row, b, h, wrong[b, h])
            return
        part = int(np.argmax(off[b, h, row]))
        rank = int(at.key_ranks[np.flatnonzero(bins == part)[0]])
        got, due = shares[b, h, row, part], wanted[row, part]
        said = (
            f"part of the keys of rank {rank} has {got:.3g} of a row's weight instead of {due:.3g},"
            f" for {highest}"
        )
        kind = "unmerged partials" if times == 1 and case.ranks > 1 else "wrong weights"
        yield _row_fault(at, kind, said, row, b, h, wrong[b, h])


def shares_of(at: Place, bins: Ints, scores: Array) -> Array:
    """Returns the weight of each part of the keys in each row: [rows, parts]."""
    number = np.stack([at.wanted[:, bins == n].sum(1) for n in range(len(scores))], axis=1)
    top = np.where(number > 0, scores, -np.inf).max(axis=1, keepdims=True)
    weight = number * np.exp(np.minimum(scores - np.where(np.isinf(top), 0, top), 0))
    return np.asarray(weight / np.maximum(weight.sum(axis=1, keepdims=True), 1e-300))


def spread(bins: Ints) -> Array:
    """Returns unordered levels of parts from -`SPREAD` to `SPREAD`, multiples of 1/4."""
    wave = np.cos(2.0 + 2.4 * np.arange(max(2, bins.max() + 1)))
    level = 2 * (wave - wave.min()) / np.ptp(wave) - 1
    return np.asarray(np.round(4 * SPREAD * level) / 4)


def leveled(case: Case, levels: Array, bins: Ints, times: float = 1.0) -> Question:
    """Returns a question with these scores of columns, in units of about 1, and these bins."""
    one, other = powers(case, times)
    ones = np.full(case.side("q").width, one)
    return Question(q=(Level(ones, 0),), k=(Level(levels * other, 0),), v=(Bins(bins),))


def powers(case: Case, times: float) -> tuple[float, float]:
    """Returns powers of two by which to multiply queries and keys; their product is `times` step.

    Each of them fits into 16 bits even if their product does not.
    """
    power = round(np.log2(_step(case) * times))
    return 2.0 ** (power - power // 2), 2.0 ** (power // 2)


def parts(case: Case, at: Place) -> Ints:
    """Returns the part of each column: half a rank's keys if values can show as many parts."""
    return halves(at, max(2, case.work.v_head_dim))


def halves(at: Place, most: int) -> Ints:
    """Returns numbers below `most` of half ranks, or of ranks if these are too many: [columns]."""
    count = np.bincount(at.key_ranks)
    later = at.key_indices * 2 >= count[at.key_ranks]
    bins = at.key_ranks * 2 + later if len(count) * 2 <= most else at.key_ranks
    return np.asarray(np.minimum(bins, most - 1))


def _step(case: Case) -> float:
    """Returns the power of two that brings the scale closest to 1, within the range of 16 bits."""
    power = -round(np.log2(abs(case.work.softmax_scale) or 1.0))
    return float(2.0 ** (min(power, HELD) if case.work.dtype == "float16" else power))


def rough(case: Case) -> float:
    """Returns the allowed rounding error of a row's share."""
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
