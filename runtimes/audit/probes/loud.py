"""Checks scores from -128 to 128, at which exp overflows in float32, and their gradients.

    spread   parts of the keys from -128 to 128    reveals a softmax without maximum, additive masks
    close    all parts at 128 or 124               reveals scores that are clamped or capped by tanh

Both questions are asked with both signs, so that every part has the highest score once.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ringloom.runtimes.arrays import Array
from ringloom.runtimes.audit.case import Case
from ringloom.runtimes.audit.grid import Grid
from ringloom.runtimes.audit.probes.levels import (
    SPREAD,
    Ask,
    check_levels,
    parts,
    powers,
    rounding_of,
    shares_of,
    spread,
    with_scores,
)
from ringloom.runtimes.audit.probes.questions import Level
from ringloom.runtimes.audit.probes.slices import by_column, signs
from ringloom.runtimes.audit.report import KINDS, Fault

LOUD = 64.0  # times levels up to 2 exceeds 88, where exp overflows in float32
GAP = 1 / 16  # 4 of 128: more than bfloat16 rounds, and tanh would make such scores equal
COTANGENT = 2.0**-4  # so that sums of gradients fit into float16


def check_large_scores(case: Case, ask: Ask, grid: Grid) -> Iterator[Fault]:
    """Yields the fault of wrong weights at large scores."""
    bins = parts(case, grid)
    far = spread(bins)
    close = SPREAD - GAP * (np.arange(len(far)) % 2)
    for levels in (far, -far, close, -close):
        if faults := [*check_levels(case, ask, grid, levels, LOUD)]:
            yield faults[0]
            return


def check_large_gradients(case: Case, ask: Ask, grid: Grid) -> Iterator[Fault]:
    """Yields the fault of gradients at large scores.

    With the signs s of keys as values and 1 as cotangent, mean[i] = sum of p[i, j] s[j]:

        dv[j] = sum of p[i, j]     dk[j] = scale q sum of p[i, j] (s[j] - mean[i])
        dq[i] = scale (1 - mean[i]^2), in a dimension in which the keys are their signs
    """
    bins = parts(case, grid)
    for levels in (spread(bins), -spread(bins)):
        if faults := [*_gradients(case, ask, grid, levels)]:
            yield faults[0]
            return


def _gradients(case: Case, ask: Ask, grid: Grid, levels: Array) -> Iterator[Fault]:
    work, bins, last = case.work, parts(case, grid), case.work.v_head_dim - 1
    q_factor, k_factor = powers(case, LOUD)
    sign = signs(grid.wanted.shape[1])
    question = with_scores(case, levels[bins], bins, LOUD)
    answer = ask(
        replace(
            question,
            k=(*question.k, Level(sign * k_factor, 1)),
            v=(Level(sign, last),),
            dout=(Level(np.full(case.side("q").width, COTANGENT), last),),
        )
    )
    scores = levels * q_factor * k_factor * work.softmax_scale
    number = np.stack([grid.wanted[:, bins == n].sum(1) for n in range(len(levels))], axis=1)
    weight = shares_of(grid, bins, scores) / np.maximum(number, 1)
    p = grid.wanted * weight[:, bins]
    mean, total = p @ sign, p.sum(axis=0)
    factor = COTANGENT * work.softmax_scale
    has_keys = grid.wanted.any(axis=1)
    dq = answer.gradient("dq")[:, :, grid.rows[has_keys], 1]
    keys = {name: by_column(case, answer.gradient(name)) for name in ("dk", "dv")}
    comparisons = {  # computed gradients, expected gradients, their size, and their unit
        "dq": (dq, 1 - mean[has_keys] ** 2, 1.0, k_factor),
        "dk": (keys["dk"][..., 0], sign * total - mean @ p, total, q_factor * work.group),
        "dv": (keys["dv"][..., last], total, total, work.group / work.softmax_scale),
    }
    for name, (computed, expected, size, unit) in comparisons.items():
        computed = computed / (factor * unit)
        tolerance = 2 * rounding_of(case) * (size + 1 / len(sign))
        wrong = ~(np.abs(computed - expected) <= tolerance)
        for b, h, token in np.argwhere(wrong)[:1].tolist():
            ratio = computed[b, h, token] / expected[token]
            highest = f"scores up to {np.abs(scores).max():.3g}"
            text = f"{name} is {ratio:.3g}x that of dense attention for {highest}"
            kind = "wrong gradient"
            if not np.isfinite(computed[b, h, token]):
                text, kind = f"{name} is NaN or infinite for {highest}", "overflow"
            side, head = ("query", "head") if name == "dq" else ("key", "KV head")
            position = int(grid.queries[has_keys][token] if name == "dq" else grid.keys[token])
            yield Fault(
                kind,
                f"{text}, first at {side} {position} of {head} {h}: {KINDS[kind]}",
                "backward",
                name,
                batch=b,
                head=h,
                pairs=int(wrong[b, h].sum()),
                **{side: position},
            )
            return
