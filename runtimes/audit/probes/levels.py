"""Checks heads and batch rows, the scale, and the merging of partial results.

    check_heads     values identify lanes, at equal scores
    check_scale     scores of keys at even and odd positions differ by about 1
    check_merges    each half of a rank's keys has its own score

All checks compare weights with those of the wanted mask, so they are meaningful only if probing at
equal scores showed no fault.
"""

from collections.abc import Callable, Iterator

import numpy as np

from ringloom.runtimes.arrays import Array
from ringloom.runtimes.audit.case import Case, Ints
from ringloom.runtimes.audit.grid import Grid
from ringloom.runtimes.audit.probes.questions import Answer, Bins, Codes, Level, Question
from ringloom.runtimes.audit.probes.weights import ROUGH
from ringloom.runtimes.audit.report import KINDS, Fault

Ask = Callable[[Question], Answer]
SPREAD = 2.0  # levels of scores range from -SPREAD to SPREAD
MAX_POWER = 20  # 2^20 is a product of two float16 numbers, with room for LOUD and levels
MIN_SCORE = 0.5  # scores below this value cannot measure a scale
MAX_SPREAD = 0.05  # maximum relative spread of a scale that counts as equal in all rows


def check_heads(case: Case, ask: Ask, grid: Grid) -> Iterator[Fault]:
    """Yields the fault of a head that reads values of a wrong KV head or batch row."""
    work, has_keys = case.work, grid.wanted.any(axis=1)
    lanes = work.batch * work.kv_heads
    shares = np.concatenate(
        [
            ask(Question(v=(Codes(start),))).out[:, :, grid.rows]
            for start in range(0, lanes, work.v_head_dim)
        ],
        axis=3,
    )[..., :lanes]
    batch, head = np.indices((work.batch, work.heads))
    wanted = batch * work.kv_heads + head // work.group
    share = np.take_along_axis(shares, wanted[..., None, None], axis=3)[..., 0]
    wrong = has_keys & (np.abs(share - 1) > rounding_of(case))
    for b, h, row in np.argwhere(wrong)[:1].tolist():
        lane = int(np.argmax(shares[b, h, row]))
        if lane == wanted[b, h]:
            total = shares[b, h, row, lane]
            text = f"the weights of head {h} of batch row {b} sum to {total:.4g}"
            yield _row_fault(grid, "wrong weights", text, row, b, h, wrong[b, h])
            return
        other, group = divmod(lane, work.kv_heads)
        kind = "wrong GQA group" if other == b else "wrong batch row"
        actual = f"KV head {group} of batch row {other}"
        expected = f"KV head {h // work.group} of batch row {b}"
        text = f"head {h} of batch row {b} reads {actual} instead of {expected}"
        yield _row_fault(grid, kind, text, row, b, h, wrong[b, h])


def check_scale(case: Case, ask: Ask, grid: Grid) -> Iterator[Fault]:
    """Yields the fault of scores with a wrong scale."""
    even = np.arange(grid.wanted.shape[1]) % 2 == 0
    number = np.stack([grid.wanted[:, even].sum(1), grid.wanted[:, ~even].sum(1)], axis=1)
    has_both, dims = number.min(axis=1) > 0, case.work.v_head_dim
    if not has_both.any():
        return
    step, wanted = _step(case), _step(case) * case.work.softmax_scale
    if abs(wanted) < MIN_SCORE:
        return
    answer = ask(with_scores(case, even.astype(float), np.where(even, 0, 1 if dims > 1 else -1)))
    shares = answer.out[:, :, grid.rows[has_both], :2].astype(np.float64)
    even_share = shares[..., 0]
    odd_share = shares[..., 1] if dims > 1 else 1 - even_share
    with np.errstate(divide="ignore", invalid="ignore"):
        difference = np.log(even_share / odd_share * (number[has_both, 1] / number[has_both, 0]))
    ratio = difference / wanted
    wrong = np.abs(ratio - 1) > (10 if case.work.dtype in ROUGH else 1) * 0.01
    for b, h in np.argwhere(wrong.any(axis=2))[:1].tolist():
        median = float(np.median(ratio[b, h]))
        row = int(np.flatnonzero(has_both)[np.flatnonzero(wrong[b, h])[0]])
        if np.all(np.abs(ratio[b, h] - median) <= MAX_SPREAD * abs(median) + 1e-3):
            factor = median * wanted / step
            text = (
                f"head {h} scales scores by {factor:.4g} instead of {case.work.softmax_scale:.4g}"
            )
            yield _row_fault(grid, "wrong scale", text, row, b, h, wrong[b, h])
        else:
            text = f"head {h} gives keys with different scores wrong weights"
            kind = "unmerged partials" if case.ranks > 1 else "wrong weights"
            yield _row_fault(grid, kind, text, row, b, h, wrong[b, h])


def check_merges(case: Case, ask: Ask, grid: Grid) -> Iterator[Fault]:
    """Yields the fault of partial results that are merged with wrong weights."""
    yield from check_levels(case, ask, grid, spread(parts(case, grid)))


def check_levels(
    case: Case, ask: Ask, grid: Grid, levels: Array, times: float = 1.0
) -> Iterator[Fault]:
    """Yields the fault of rows whose weights do not follow the scores `times` * `levels` of parts.

    Values can show one part per dimension.
    """
    bins, dims = parts(case, grid), min(len(levels), case.work.v_head_dim)
    answer = ask(with_scores(case, levels[bins], np.where(bins < dims, bins, -1), times))
    shares = answer.out[:, :, grid.rows, :dims].astype(np.float64)
    scores = levels * times * _step(case) * case.work.softmax_scale
    wanted = shares_of(grid, bins, scores)[:, :dims]
    error = np.abs(shares - wanted)
    wrong = np.asarray(~(error <= 2 * rounding_of(case)).all(axis=3) & grid.wanted.any(axis=1))
    for b, h, row in np.argwhere(wrong)[:1].tolist():
        highest = f"scores up to {np.abs(scores).max():.3g}"
        if not np.isfinite(shares[b, h, row]).all():
            text = f"head {h} returns NaN or infinity for {highest}"
            yield _row_fault(grid, "overflow", text, row, b, h, wrong[b, h])
            return
        part = int(np.argmax(error[b, h, row]))
        rank = int(grid.key_ranks[np.flatnonzero(bins == part)[0]])
        text = (
            f"some keys of rank {rank} have {shares[b, h, row, part]:.3g} of the row's weight"
            f" instead of {wanted[row, part]:.3g}, for {highest}"
        )
        kind = "unmerged partials" if times == 1 and case.ranks > 1 else "wrong weights"
        yield _row_fault(grid, kind, text, row, b, h, wrong[b, h])


def shares_of(grid: Grid, bins: Ints, scores: Array) -> Array:
    """Returns the weight of each part of the keys in each row: [rows, parts]."""
    number = np.stack([grid.wanted[:, bins == n].sum(1) for n in range(len(scores))], axis=1)
    top = np.where(number > 0, scores, -np.inf).max(axis=1, keepdims=True)
    weight = number * np.exp(np.minimum(scores - np.where(np.isinf(top), 0, top), 0))
    return np.asarray(weight / np.maximum(weight.sum(axis=1, keepdims=True), 1e-300))


def spread(bins: Ints) -> Array:
    """Returns a level for each part, unordered, between -`SPREAD` and `SPREAD`."""
    wave = np.cos(2.0 + 2.4 * np.arange(max(2, bins.max() + 1)))
    level = 2 * (wave - wave.min()) / np.ptp(wave) - 1
    return np.asarray(np.round(4 * SPREAD * level) / 4)


def with_scores(case: Case, levels: Array, bins: Ints, times: float = 1.0) -> Question:
    """Returns a question in which columns have scores near `times` * `levels`, and these bins."""
    q_factor, k_factor = powers(case, times)
    queries = np.full(case.side("q").width, q_factor)
    return Question(q=(Level(queries, 0),), k=(Level(levels * k_factor, 0),), v=(Bins(bins),))


def powers(case: Case, times: float) -> tuple[float, float]:
    """Returns powers of two to multiply queries and keys by, with a product near `times` / scale.

    Both powers fit into 16 bits even if their product does not.
    """
    power = round(np.log2(_step(case) * times))
    return 2.0 ** (power - power // 2), 2.0 ** (power // 2)


def parts(case: Case, grid: Grid) -> Ints:
    """Returns the part of each column, which is half a rank if values can show all parts."""
    return halves(grid, max(2, case.work.v_head_dim))


def halves(grid: Grid, limit: int) -> Ints:
    """Returns the half rank of each column, or its rank if there are too many: [columns].

    Numbers are below `limit`.
    """
    sizes = np.bincount(grid.key_ranks)
    is_second = grid.key_indices * 2 >= sizes[grid.key_ranks]
    bins = grid.key_ranks * 2 + is_second if len(sizes) * 2 <= limit else grid.key_ranks
    return np.asarray(np.minimum(bins, limit - 1))


def _step(case: Case) -> float:
    """Returns the power of two closest to 1 / scale, limited to the range of float16."""
    power = -round(np.log2(abs(case.work.softmax_scale) or 1.0))
    return float(2.0 ** (min(power, MAX_POWER) if case.work.dtype == "float16" else power))


def rounding_of(case: Case) -> float:
    """Returns the allowed rounding error of a share of a row's weight."""
    return 0.03 if case.work.dtype in ROUGH else 0.005


def _row_fault(
    grid: Grid, kind: str, text: str, row: int, batch: int, head: int, wrong: Array
) -> Fault:
    number = int(wrong.sum())
    query = grid.query_name(row)
    return Fault(
        kind,
        f"{query}: {text}; {number} rows of this head are wrong: {KINDS[kind]}",
        query=int(grid.queries[row]),
        query_rank=int(grid.query_ranks[row]),
        query_index=int(grid.query_indices[row]),
        batch=batch,
        head=head,
        pairs=number,
    )
