"""Turns matrices of weights into faults, with their kinds and first wrong pairs."""

from collections.abc import Iterator

import numpy as np

from ringloom.runtimes.arrays import Array
from ringloom.runtimes.audit.case import Case
from ringloom.runtimes.audit.faults.shapes import kind_of, matching_suspect
from ringloom.runtimes.audit.grid import Grid, grid_of
from ringloom.runtimes.audit.probes.probing import ProbeResult
from ringloom.runtimes.audit.probes.weights import Counts, count, tolerance_of
from ringloom.runtimes.audit.report import KINDS, Computed, Fault, pooled

MAX_SPREAD = 0.05  # of ratios that count as one factor
LOST = 0.02  # share of its weight below which a gradient counts as lost
TIMES = {0: "not at all", 1: "once", 2: "twice"}


def judge(case: Case, result: ProbeResult) -> tuple[list[Fault], list[Computed], Array]:
    """Returns the faults of all tensors, the multiplicities of each, and the wanted mask."""
    grid = grid_of(case)
    tolerance = tolerance_of(case.work.dtype)
    faults, matrices = list[Fault](), list[Computed]()
    for lane, lanes, weights in result.weights["out"].items():
        counts = count(weights[grid.rows], tolerance)
        matrices.append(Computed("out", *lane, lanes, pooled(counts.times[:, : grid.tokens])))
        faults += forward_faults(case, grid, counts, lane, tolerance, weights[grid.rows])
    for name in [name for name in result.weights if name != "out"]:
        for lane, lanes, weights in result.weights[name].items():
            forward = _forward_weights(case, result, lane, name)[grid.rows]
            gradient = weights[grid.rows]
            if name != "dv":
                gradient = np.where(result.blind[grid.rows], forward, gradient)
            times = _gradient_times(gradient, forward, grid)
            matrices.append(Computed(name, *lane, lanes, pooled(times)))
            blind = result.blind[grid.rows]
            faults += gradient_faults(case, grid, name, gradient, forward, lane, blind)
    return _first_of_kinds(faults), matrices, pooled(grid.wanted[:, : grid.tokens])


def forward_faults(
    case: Case, grid: Grid, counts: Counts, lane: tuple[int, int], tolerance: float, weights: Array
) -> Iterator[Fault]:
    """Yields the fault of the weights of a lane, if there is one."""
    wrong, has_keys = counts.times != grid.wanted, grid.wanted.any(axis=1)
    normalized = (np.abs(counts.total - 1) <= tolerance) | ~(counts.times > 0).any(axis=1)
    if wrong.any():
        kind = kind_of(case, grid, counts.times, counts.uneven, normalized)
        yield _fault(grid, kind, "out", lane, wrong, counts.times)
        return
    if (counts.uneven & has_keys).any():
        fair = counts.total[:, None] / np.maximum(grid.wanted.sum(axis=1, keepdims=True), 1)
        error = np.where(grid.wanted & counts.uneven[:, None], np.abs(weights - fair), 0)
        wrong = (error > 0) & (error >= error.max(axis=1, keepdims=True) / 2)
        yield _fault(
            grid, _merge_fault_kind(case), "out", lane, wrong, counts.times, weights=(weights, fair)
        )
    elif (off := has_keys & (np.abs(counts.total - 1) > tolerance)).any():
        row = int(np.flatnonzero(off)[0])
        total = counts.total[row]
        to_padding = total < 1 and bool(grid.padding.any() or case.ranks > 1)
        kind = "padding attended" if to_padding else _merge_fault_kind(case)
        remainder = "; the remaining weight goes to padding" if to_padding else ""
        yield Fault(
            kind,
            f"{grid.query_name(row)} attends to the correct keys,"
            f" but their weights sum to {total:.4g}{remainder}",
            query=int(grid.queries[row]),
            query_rank=int(grid.query_ranks[row]),
            query_index=int(grid.query_indices[row]),
            batch=lane[0],
            head=lane[1],
            pairs=int(off.sum()),
        )


def gradient_faults(
    case: Case,
    grid: Grid,
    name: str,
    gradient: Array,
    forward: Array,
    lane: tuple[int, int],
    blind: Array,
) -> Iterator[Fault]:
    """Yields the fault of a lane's gradient if it disagrees with the forward pass."""
    tolerance, broken = 2 * tolerance_of(case.work.dtype), ~np.isfinite(gradient)
    if broken.any():
        kind = "not finite" if grid.wanted.any(axis=1).all() else "empty rows"
        yield _fault(grid, kind, name, lane, broken, np.full_like(gradient, np.nan))
        return
    tiny = tolerance / grid.wanted.shape[1] / 4
    wrong = np.abs(gradient - forward) > tolerance * np.abs(forward) + tiny
    if not wrong.any():
        return
    has_weight = forward > tiny
    lost = has_weight & (np.abs(gradient) < LOST * forward)
    leaks = wrong & ~has_weight
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = (gradient / forward)[wrong & has_weight]
    factor = float(np.median(ratio)) if ratio.size else 0.0
    times = _gradient_times(gradient, forward, grid)
    if leaks.any():
        kind = matching_suspect(case, grid, np.abs(gradient) > tiny, wrong) or "gradient leak"
    elif not (wrong & ~lost).any():
        kind = "gradient lost"
    elif np.all(np.abs(ratio - factor) <= MAX_SPREAD * abs(factor)):
        everywhere = (wrong | blind | ~has_weight).all()
        is_double = abs(factor - 2) < MAX_SPREAD and not everywhere
        kind = "attended twice" if is_double else "gradient scaled"
    else:
        kind = "wrong gradient"
    yield _fault(grid, kind, name, lane, wrong, times, factor)


def _gradient_times(gradient: Array, forward: Array, grid: Grid) -> Array:
    """Returns gradients in units of the weights of the forward pass: [queries, keys]."""
    unit = np.where(forward > 0, forward, forward.max(axis=1, keepdims=True))
    ratio = np.divide(gradient, unit, out=np.zeros_like(gradient), where=unit > 0)
    return np.nan_to_num(np.round(ratio[:, : grid.tokens], 2), posinf=0.0, neginf=0.0)


def _forward_weights(case: Case, result: ProbeResult, lane: tuple[int, int], name: str) -> Array:
    """Returns the weights of out with which a lane's gradient must agree."""
    out = result.weights["out"]
    head = lane[1] * (case.work.group if name in ("dk", "dv") else 1)
    return np.asarray(out.others.get((lane[0], head), out.first))


def _fault(
    grid: Grid,
    kind: str,
    tensor: str,
    lane: tuple[int, int],
    wrong: Array,
    times: Array,
    factor: float | None = None,
    weights: tuple[Array, Array] | None = None,
) -> Fault:
    """Returns the fault at the first wrong pair, by query and then key."""
    row = int(np.flatnonzero(wrong.any(axis=1))[0])
    column = int(np.flatnonzero(wrong[row])[0])
    padding = column >= grid.tokens
    computed = times[row, column] if column < times.shape[1] else 0
    wanted = int(grid.wanted[row, column])
    query = grid.query_name(row)
    key = f"{'padding' if padding else f'key {grid.keys[column]}'}"
    key += f" (rank {grid.key_ranks[column]}, row {grid.key_indices[column]})"
    number = int(wrong.sum())
    if weights:
        weight, fair = weights[0][row, column], weights[1][row, 0]
        text = f"{query} attends to {key} with the weight {weight:.4g} instead of {fair:.4g}"
    elif not np.isfinite(computed):
        text = f"{tensor} of {query} and {key} is NaN or infinite"
    elif tensor == "out":
        text = f"{query} attends to {key} {_times(computed)} instead of {_times(wanted)}"
    else:
        text = f"{tensor} of {query} and {key} is {computed:.3g}x the weight in the forward pass"
        if kind == "gradient scaled":
            text += f"; the median factor of all wrong pairs is {factor:.3g}x"
    head = "KV head" if tensor in ("dk", "dv") else "head"
    pairs = "pair is" if number == 1 else "pairs are"
    return Fault(
        kind,
        f"{text}; {number} {pairs} wrong in {head} {lane[1]}: {KINDS[kind]}",
        pass_="forward" if tensor == "out" else "backward",
        tensor=tensor,
        query=int(grid.queries[row]),
        key=None if padding else int(grid.keys[column]),
        query_rank=int(grid.query_ranks[row]),
        key_rank=int(grid.key_ranks[column]),
        query_index=int(grid.query_indices[row]),
        key_index=int(grid.key_indices[column]),
        batch=lane[0],
        head=lane[1],
        computed=float(computed),
        wanted=float(wanted),
        pairs=number,
    )


def _merge_fault_kind(case: Case) -> str:
    """Returns the kind of fault of weights that are not averages."""
    return "unmerged partials" if case.ranks > 1 else "wrong weights"


def _times(number: float) -> str:
    return TIMES.get(int(number), f"{int(number)} times")


def _first_of_kinds(faults: list[Fault]) -> list[Fault]:
    """Returns the first fault of each tensor and kind."""
    first: dict[tuple[str, str], Fault] = {}
    for fault in faults:
        first.setdefault((fault.tensor, fault.kind), fault)
    return [*first.values()]
