"""Checks that plans are exact and that nothing leaks through the mask.

Errors are the largest absolute differences from dense attention in float64 on the same inputs. The
leak probe has no tolerance: if a key changes, exactly the rows that may attend to it must change.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ringloom.planner.given import require_integer
from ringloom.planner.plans import AnyPlans
from ringloom.planner.verify import ensure_verified
from ringloom.planner.workload import Workload
from ringloom.runtimes.arrays import Array, draw, draw_sinks, dtype_of, sum_dtype_of
from ringloom.runtimes.backends import Execute, forward, run
from ringloom.runtimes.reference import dense

GRADIENTS = "dq", "dk", "dv", "dsink"
# Largest allowed errors of (out and lse, gradients), by the dtype of partial sums.
EXACT = {"float64": (1e-12, 1e-11), "float32": (5e-6, 2e-5)}
FACTOR_16_BIT = 2  # in 16 bit, times the error of dense attention with rounded results
CHANGE = 1000.0  # added by a probe: changes every row in which the weight exceeds rounding
CHANGE_16_BIT = 8.0  # the same in 16 bit, within the range of float16

Run = Callable[..., Any]
Arrays = Sequence[Array]


@dataclass(frozen=True, slots=True)
class Check:
    """The verdict on a plan; an error is None if its pass did not run.

    Errors are absolute. `tolerances` has an entry for each measured error: "forward", "lse", "dq",
    "dk", "dv", "dsink". `leaks` describes tokens that wrongly changed, or wrongly stayed the same.
    """

    leak_free: bool
    exact: bool
    tolerances: dict[str, float]
    leaks: tuple[str, ...] = ()
    forward_error: float | None = None
    lse_error: float | None = None
    dq_error: float | None = None
    dk_error: float | None = None
    dv_error: float | None = None
    dsink_error: float | None = None

    def __repr__(self) -> str:
        errors = (getattr(self, f"{name}_error") for name in self.tolerances)
        worst, verdict = max(errors, default=0.0), "exact" if self.exact else "NOT exact"
        leaks = "no leaks" if self.leak_free else f"{len(self.leaks)} leaks"
        return f"<Check: {verdict}, largest error {worst:.2g}, {leaks}>"


def check(plan: AnyPlans, backend: str | Execute = "numpy", seed: int = 0) -> Check:
    """Runs a plan, or a (forward, backward) pair, on random inputs and compares the results.

    Inputs and sinks are standard normal numbers of the workload's dtype. exact: every error is
    within its tolerance (1e-12 and 1e-11 for gradients in float64, 5e-6 and 2e-5 in float32, twice
    the error of dense attention in 16 bit, but never less than in float32) and nothing leaks.
    Raises RingloomError for an unknown backend, a negative seed and a plan that cannot be run.
    """
    plans, seed = ensure_verified(plan), require_integer("seed", seed)
    work, inputs = plans.workload, draw(plans.workload, seed)
    sinks = draw_sinks(work, seed)
    options: dict[str, Any] = {"sinks": sinks, "backend": backend}
    errors, leaks = list[NamedError](), mask_conflicts(work)
    if plans.forward:
        truth: Run = partial(dense.forward, sinks=sinks)
        results = forward(plans, *inputs[:3], **options)
        errors += _judge(work, ("forward", "lse"), results, truth, inputs[:3])
        leaks += forward_leaks(work, partial(run, plans.forward, **options), seed)
    if plans.backward:
        run_both: Run = partial(run, plans, **options)
        truth = partial(dense.backward, sinks=sinks)
        names = GRADIENTS if work.sinks else GRADIENTS[:3]
        errors += _judge(work, names, run_both(*inputs)[1:], truth, inputs)
        leaks += backward_leaks(work, run_both, seed)
    return Check(
        **{f"{name}_error": error for name, error, _ in errors},
        leak_free=not leaks,
        exact=not leaks and all(error <= tolerance for _, error, tolerance in errors),
        tolerances={name: tolerance for name, _, tolerance in errors},
        leaks=tuple(leaks),
    )


NamedError = tuple[str, float, float]  # name, error, tolerance


def _judge(
    work: Workload, names: Sequence[str], results: Arrays, dense_pass: Run, inputs: Arrays
) -> list[NamedError]:
    truth = dense_pass(work, *inputs)
    errors = map(distance, results, truth)
    tolerance = EXACT[sum_dtype_of(work.dtype).name]["dq" in names]
    rounding_errors = [0.0] * len(truth)
    if _is_16_bit(work):
        rounding_errors = list(
            map(distance, dense_pass(work, *inputs, precision=work.dtype), truth)
        )
    tolerances = (max(tolerance, FACTOR_16_BIT * error) for error in rounding_errors)
    return list(zip(names, errors, tolerances, strict=True))


def _is_16_bit(work: Workload) -> bool:
    return dtype_of(work.dtype).itemsize == 2


def distance(result: Array, truth: Array) -> float:
    """Returns the largest absolute difference; inf if only one value is -inf, NaN for any NaN."""
    result, truth = np.asarray(result).astype(np.float64), truth.astype(np.float64)
    if result.shape != truth.shape:
        return np.inf
    finite = ~np.isneginf(truth)
    if not np.array_equal(finite, ~np.isneginf(result)):
        return np.inf
    return float(np.max(np.abs(result[finite] - truth[finite]), initial=0.0))


# ---- the leak probe


def mask_conflicts(work: Workload) -> list[str]:
    """Returns a sentence on the first pair for which a mask's region and definition disagree.

    Runs evaluate the definition of a mask, programs call kernels for its region. The list is empty
    if both agree.
    """
    keys, pieces = np.arange(work.kv_seq), work.mask.region().pieces
    for band in dense.bands(work.seq, work.kv_seq):
        queries = np.arange(work.seq)[band]
        first, last = band.start + work.offset, band.start + work.offset + len(queries)
        counts = np.zeros((len(queries), work.kv_seq), np.uint8)
        for i0, i1, j0, j1, low, high in pieces:
            rows = slice(*np.clip((i0, i1), first, last) - first)
            columns = slice(*np.clip((j0, j1), 0, work.kv_seq))
            diagonal = keys[columns] - (queries[rows, None] + work.offset)
            counts[rows, columns] += (low <= diagonal) & (diagonal <= high)
        allowed = work.allowed(queries, keys).view(np.uint8)
        for i, j in np.argwhere(counts != allowed)[:1]:
            region = f"query {queries[i]}, key {j} counts {counts[i, j]} in the mask's region"
            return [f"{region}, but {allowed[i, j]} in its definition"]
    return []


def forward_leaks(work: Workload, run: Run, seed: int = 0) -> list[str]:
    """Changes one key and its value at a time; returns sentences on wrong changes of out.

    Exactly the rows that may attend to the key must change; in 16 bit they may also stay the same.
    `run(q, k, v)` returns out.
    """
    q, k, v, _ = _probe_inputs(work, seed)
    before, leaks, must_change = run(q, k, v), list[str](), not _is_16_bit(work)
    for key in probes(work, seed)[1]:
        after = run(q, _with_change(k, key, 1), _with_change(v, key))
        allowed = work.allowed(range(work.seq), [key])[:, 0]
        leaks += _compare("out", f"key {key}", _changed_tokens(before, after), allowed, must_change)
    return leaks


def backward_leaks(work: Workload, run: Run, seed: int = 0) -> list[str]:
    """Changes dout at one query at a time; returns sentences on wrong changes of gradients.

    dq may change at that query, dk and dv at the keys that it may attend to. dv must change at
    these keys, except in 16 bit. `run(q, k, v, dout)` returns (out, dq, dk, dv, ...).
    """
    q, k, v, dout = _probe_inputs(work, seed)
    before, leaks, must_change = run(q, k, v, dout)[1:4], list[str](), not _is_16_bit(work)
    for query in probes(work, seed)[0]:
        after = run(q, k, v, _with_change(dout, query))[1:4]
        dq, dk, dv = map(_changed_tokens, before, after)
        is_query, allowed = (
            np.arange(work.seq) == query,
            work.allowed([query], range(work.kv_seq))[0],
        )
        cause = f"query {query}"
        leaks += _compare("dq", cause, dq, is_query, must_change=False)
        leaks += _compare("dk", cause, dk, allowed, must_change=False)
        leaks += _compare("dv", cause, dv, allowed, must_change)
    return leaks


def probes(work: Workload, seed: int) -> tuple[list[int], list[int]]:
    """Returns a few queries and keys, including neighbours on both sides of a mask edge."""
    random = np.random.default_rng([seed, 1])
    query, key = int(random.integers(work.seq)), int(random.integers(work.kv_seq))
    keys = _edge(work.allowed([query], range(work.kv_seq))[0], random)
    queries = _edge(work.allowed(range(work.seq), [key])[:, 0], random)
    return sorted({query, *queries}), sorted({key, *keys})


def _edge(allowed: Array, random: np.random.Generator) -> list[int]:
    """Returns two neighbours of which exactly one is allowed, or [] if there are none."""
    edges = np.flatnonzero(allowed[1:] != allowed[:-1])
    first = int(random.choice(edges)) if edges.size else 0
    return [first, first + 1] if edges.size else []


def _probe_inputs(work: Workload, seed: int) -> tuple[Array, Array, Array, Array]:
    """Returns random inputs with scores near 1, so that no allowed weight rounds to 0."""
    q, k, v, dout = draw(work, seed)
    factor = max(1.0, abs(work.softmax_scale) * work.head_dim**0.5)
    return (q.astype(np.float64) / factor).astype(q.dtype), k, v, dout


def _with_change(array: Array, token: int, amount: float | None = None) -> Array:
    """Returns a copy in which one token differs in every head; all other bits are the same."""
    change = CHANGE_16_BIT if array.dtype.itemsize == 2 else CHANGE
    changed = array.copy()
    changed[:, :, token] += array.dtype.type(change if amount is None else amount)
    return changed


def _changed_tokens(before: Array, after: Array) -> Array:
    """Returns True for tokens that have a different number or NaN: bool [tokens]."""
    return np.asarray((np.asarray(before) != np.asarray(after)).any(axis=(0, 1, 3)))


def _compare(name: str, cause: str, changed: Array, allowed: Array, must_change: bool) -> list[str]:
    wrong = np.flatnonzero(changed & ~allowed), np.flatnonzero(allowed & ~changed & must_change)
    return [
        *(f"{name} changes at token {t}, which {cause} must not affect" for t in wrong[0]),
        *(f"{name} does not change at token {t}, which {cause} affects" for t in wrong[1]),
    ]
