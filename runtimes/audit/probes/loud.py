"""Checks scores from -128 to 128, at which exp overflows in float32, and their gradients.

    spread   parts of the keys from -128 to 128    shows a softmax without maximum, additive masks
    close    all parts at 128 or 124               shows scores that are clamped or capped by tanh

Each is asked with both signs, so that every part has the highest score once.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ringloom.runtimes.arrays import Array
from ringloom.runtimes.audit.case import Case
from ringloom.runtimes.audit.place import Place
from ringloom.runtimes.audit.probes.levels import (
    SPREAD,
    Ask,
    compared,
    leveled,
    parts,
    powers,
    rough,
    shares_of,
    spread,
)
from ringloom.runtimes.audit.probes.questions import Level
from ringloom.runtimes.audit.probes.slices import by_column, signs
from ringloom.runtimes.audit.report import KINDS, Fault

LOUD = 64.0  # times levels up to 2 is above 88, where exp overflows in float32
APART = 1 / 16  # 4 of 128: more than bfloat16 rounds, and tanh would make such scores equal
SOFT = 2.0**-4  # cotangent for which sums of gradients fit into float16


def loud(case: Case, ask: Ask, at: Place) -> Iterator[Fault]:
    """Yields the fault of wrong weights at large scores."""
    bins = parts(case, at)
    far = spread(bins)
    close = SPREAD - APART * (np.arange(len(far)) % 2)
    for levels in (far, -far, close, -close):
        if faults := [*compared(case, ask, at, levels, LOUD)]:
            yield faults[0]
            return


def loud_gradients(case: Case, ask: Ask, at: Place) -> Iterator[Fault]:
    """Yields the fault of gradients at large scores.

    With signs s of keys as values and 1 as cotangent, mean[i] = sum of p[i, j] s[j]:

        dv[j] = sum of p[i, j]     dk[j] = scale q sum of p[i, j] (s[j] - mean[i])
        dq[i] = scale (1 - mean[i]^2), where a dimension of the keys has their signs, too
    """
    bins = parts(case, at)
    for levels in (spread(bins), -spread(bins)):
        if faults := [*_gradients(case, ask, at, levels)]:
            yield faults[0]
            return


def _gradients(case: Case, ask: Ask, at: Place, levels: Array) -> Iterator[Fault]:
    work, bins, last = case.work, parts(case, at), case.work.v_head_dim - 1
    one, other = powers(case, LOUD)
    sign = signs(at.wanted.shape[1])
    question = leveled(case, levels[bins], bins, LOUD)
    answer = ask(
        replace(
            question,
            k=(*question.k, Level(sign * other, 1)),
            v=(Level(sign, last),),
            dout=(Level(np.full(case.side("q").width, SOFT), last),),
        )
    )
    scores = levels * one * other * work.softmax_scale
    number = np.stack([at.wanted[:, bins == n].sum(1) for n in range(len(levels))], axis=1)
    each = shares_of(at, bins, scores) / np.maximum(number, 1)
    p = at.wanted * each[:, bins]
    mean, total = p @ sign, p.sum(axis=0)
    factor = SOFT * work.softmax_scale
    sees = at.wanted.any(axis=1)
    keys = {name: by_column(case, answer.gradient(name)) for name in ("dk", "dv")}
    due = {  # what was shown, what is due, and its size
        "dq": (answer.gradient("dq")[:, :, at.rows[sees], 1], 1 - mean[sees] ** 2, 1.0, other),
        "dk": (keys["dk"][..., 0], sign * total - mean @ p, total, one * work.group),
        "dv": (keys["dv"][..., last], total, total, work.group / work.softmax_scale),
    }
    for name, (shown, right, size, unit) in due.items():
        shown = shown / (factor * unit)
        wrong = ~(np.abs(shown - right) <= 2 * rough(case) * (size + 1 / len(sign)))
        for b, h, token in np.argwhere(wrong)[:1].tolist():
            got, wanted = shown[b, h, token], right[token]
            highest = f"scores up to {np.abs(scores).max():.3g}"
            said = f"{name} is {got / wanted:.3g}x dense attention's for {highest}"
            kind = "wrong gradient"
            if not np.isfinite(got):
                said, kind = f"{name} is NaN or infinite for {highest}", "overflow"
            side, head = ("query", "head") if name == "dq" else ("key", "KV head")
            position = int(at.queries[sees][token] if name == "dq" else at.keys[token])
            yield Fault(
                kind,
                f"{said}, first at {side} {position} of {head} {h}: {KINDS[kind]}",
                "backward",
                name,
                batch=b,
                head=h,
                pairs=int(wrong[b, h].sum()),
                **{side: position},
            )
            return
