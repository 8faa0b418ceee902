"""Checks that plans are exact and that nothing leaks through the mask.

Errors are largest absolute differences from dense attention in float64 on the same inputs. The leak
probe has no tolerance: if one key changes, exactly the rows that may attend to it must change.
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
from ringloom.runtimes.arrays import Array, draw, draw_sinks, dtype_of, wide
from ringloom.runtimes.backends import Execute, forward, run
from ringloom.runtimes.reference import dense

GRADIENTS = "dq", "dk", "dv", "dsink"
# Largest allowed error of (out and lse, gradients) by the dtype of partial sums.
EXACT = {"float64": (1e-12, 1e-11), "float32": (5e-6, 2e-5)}
TWICE = 2  # in 16 bit: times the error of dense attention with a rounded result
LOUD = 1000.0  # added by a probe: changes every row in which the weight exceeds rounding
QUIET = 8.0  # the same in 16 bit, within the range of float16

Run = Callable[..., Any]
Arrays = Sequence[Array]


@dataclass(frozen=True, slots=True)
class Check:
    """The verdict on a plan; an error is None if its pass was not run.

    Errors are absolute; `tolerances` has one for each measured error, by name ("forward", "lse",
    "dq", "dk", "dv", "dsink"). `leaks` names tokens that changed but must not, or did not change.
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
    Raises PlanError for an unknown backend, for seeds below 0 and for plans that cannot be run.
    """
    plans, seed = ensure_verified(plan), require_integer("seed", seed)
    work, inputs = plans.workload, draw(plans.workload, seed)
    sinks = draw_sinks(work, seed)
    given: dict[str, Any] = {"sinks": sinks, "backend": backend}
    judged, leaks = list[Judged](), misfits(work)
    if plans.forward:
        truth: Run = partial(dense.forward, sinks=sinks)
        results = forward(plans, *inputs[:3], **given)
        judged += _judge(work, ("forward", "lse"), results, truth, inputs[:3])
        leaks += forward_leaks(work, partial(run, plans.forward, **given), seed)
    if plans.backward:
        both: Run = partial(run, plans, **given)
        truth = partial(dense.backward, sinks=sinks)
        names = GRADIENTS if work.sinks else GRADIENTS[:3]
        judged += _judge(work, names, both(*inputs)[1:], truth, inputs)
        leaks += backward_leaks(work, both, seed)
    return Check(
        **{f"{name}_error": error for name, error, _ in judged},
        leak_free=not leaks,
        exact=not leaks and all(error <= tolerance for _, error, tolerance in judged),
        tolerances={name: tolerance for name, _, tolerance in judged},
        leaks=tuple(leaks),
    )


Judged = tuple[str, float, float]  # name, error, tolerance


def _judge(
    work: Workload, names: Sequence[str], results: Arrays, dense_pass: Run, inputs: Arrays
) -> list[Judged]:
    truth = dense_pass(work, *inputs)
    errors = map(distance, results, truth)
    least = EXACT[wide(work.dtype).name]["dq" in names]
    own = [0.0] * len(truth)
    if _is_16_bit(work):
        own = list(map(distance, dense_pass(work, *inputs, precision=work.dtype), truth))
    tolerances = (max(least, TWICE * error) for error in own)
    return list(zip(names, errors, tolerances, strict=True))


def _is_16_bit(work: Workload) -> bool:
    return dtype_of(work.dtype).itemsize == 2


def distance(result: Array, truth: Array) -> float:
    """Returns the largest absolute difference; inf if only one of two is -inf, NaN for any NaN."""
    result, truth = np.asarray(result).astype(np.float64), truth.astype(np.float64)
    if result.shape != truth.shape:
        return np.inf
    nothing = np.isneginf(truth)
    if not np.array_equal(nothing, np.isneginf(result)):
        return np.inf
    return float(np.max(np.abs(result[~nothing] - truth[~nothing]), initial=0.0))


# ---- the leak probe


def misfits(work: Workload) -> list[str]:
    """Returns a pair on which the region of the mask disagrees with its definition, if any.

    Runs evaluate the definition of a mask; programs call kernels for its region.
    """
    keys, pieces = np.arange(work.kv_seq), work.mask.region().pieces
    for at in dense.bands(work.seq, work.kv_seq):
        queries = np.arange(work.seq)[at]
        first, last = at.start + work.offset, at.start + work.offset + len(queries)
        held = np.zeros((len(queries), work.kv_seq), np.uint8)
        for i0, i1, j0, j1, low, high in pieces:
            rows = slice(*np.clip((i0, i1), first, last) - first)
            columns = slice(*np.clip((j0, j1), 0, work.kv_seq))
            apart = keys[columns] - (queries[rows, None] + work.offset)
            held[rows, columns] += (low <= apart) & (apart <= high)
        allowed = work.allowed(queries, keys).view(np.uint8)
        for i, j in np.argwhere(held != allowed)[:1]:
            said = f"counts query {queries[i]}, key {j} as {held[i, j]}"
            return [f"the mask's region {said}, its definition as {allowed[i, j]}"]
    return []


def forward_leaks(work: Workload, run: Run, seed: int = 0) -> list[str]:
    """Changes one key and value at a time; returns rows of out that wrongly change or stay.

    Exactly the rows that may attend to the key must change; in 16 bit they need not. `run(q, k, v)`
    returns out.
    """
    q, k, v, _ = _probe_inputs(work, seed)
    before, leaks, certain = run(q, k, v), list[str](), not _is_16_bit(work)
    for key in probes(work, seed)[1]:
        after = run(q, _changed(k, key, 1), _changed(v, key))
        may = work.allowed(range(work.seq), [key])[:, 0]
        leaks += _compare("out", f"key {key}", _moved(before, after), may, certain)
    return leaks


def backward_leaks(work: Workload, run: Run, seed: int = 0) -> list[str]:
    """Changes dout at one query at a time; returns gradients that wrongly change or stay.

    dq may change at that query, dk and dv at the keys that it may attend to. Only dv must change,
    and not in 16 bit. `run(q, k, v, dout)` returns (out, dq, dk, dv, ...).
    """
    q, k, v, dout = _probe_inputs(work, seed)
    before, leaks, certain = run(q, k, v, dout)[1:4], list[str](), not _is_16_bit(work)
    for query in probes(work, seed)[0]:
        after = run(q, k, v, _changed(dout, query))[1:4]
        dq, dk, dv = map(_moved, before, after)
        row, may = np.arange(work.seq) == query, work.allowed([query], range(work.kv_seq))[0]
        cause = f"query {query}"
        leaks += _compare("dq", cause, dq, row, certain=False)
        leaks += _compare("dk", cause, dk, may, certain=False)
        leaks += _compare("dv", cause, dv, may, certain)
    return leaks


def probes(work: Workload, seed: int) -> tuple[list[int], list[int]]:
    """Returns a few queries and keys, including both sides of an edge of the mask."""
    random = np.random.default_rng([seed, 1])
    query, key = int(random.integers(work.seq)), int(random.integers(work.kv_seq))
    keys = _edge(work.allowed([query], range(work.kv_seq))[0], random)
    queries = _edge(work.allowed(range(work.seq), [key])[:, 0], random)
    return sorted({query, *queries}), sorted({key, *keys})


def _edge(sees: Array, random: np.random.Generator) -> list[int]:
    """Returns two neighbours of which exactly one is allowed, or none if there are no such."""
    edges = np.flatnonzero(sees[1:] != sees[:-1])
    at = int(random.choice(edges)) if edges.size else 0
    return [at, at + 1] if edges.size else []


def _probe_inputs(work: Workload, seed: int) -> tuple[Array, Array, Array, Array]:
    """Returns random inputs with scores of order 1, so that no allowed weight rounds to 0."""
    q, k, v, dout = draw(work, seed)
    steep = max(1.0, abs(work.softmax_scale) * work.head_dim**0.5)
    return (q.astype(np.float64) / steep).astype(q.dtype), k, v, dout


def _changed(array: Array, token: int, by: float | None = None) -> Array:
    """Returns a copy in which one token differs in every head; all other bits are the same."""
    loud = QUIET if array.dtype.itemsize == 2 else LOUD
    changed = array.copy()
    changed[:, :, token] += array.dtype.type(loud if by is None else by)
    return changed


def _moved(before: Array, after: Array) -> Array:
    """Returns True for tokens in which any number differs: bool [tokens]; NaN always differs."""
    return np.asarray((np.asarray(before) != np.asarray(after)).any(axis=(0, 1, 3)))


def _compare(name: str, cause: str, moved: Array, may: Array, certain: bool) -> list[str]:
    wrong = np.flatnonzero(moved & ~may), np.flatnonzero(may & ~moved & certain)
    return [
        *(f"{name} moves at token {t}, which {cause} must not reach" for t in wrong[0]),
        *(f"{name} stays at token {t}, which {cause} reaches" for t in wrong[1]),
    ]
