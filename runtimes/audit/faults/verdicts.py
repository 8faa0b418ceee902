"""Turns matrices of weights into faults: their kinds, and where they show first."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from ringloom.runtimes.arrays import Array
from ringloom.runtimes.audit.case import Case
from ringloom.runtimes.audit.faults.shapes import kind_of, suspected
from ringloom.runtimes.audit.place import Place, place
from ringloom.runtimes.audit.probes.probing import Seen
from ringloom.runtimes.audit.probes.weights import Counts, count, tolerance_of
from ringloom.runtimes.audit.report import KINDS, Computed, Fault, pooled

SAME = 0.05  # maximum spread of ratios that count as one factor
GONE = 0.02  # share of its weight below which a gradient counts as lost
TIMES = {0: "not at all", 1: "once", 2: "twice"}


def judge(case: Case, seen: Seen) -> tuple[list[Fault], list[Computed], Array]:
    """Returns the faults of all tensors, the multiplicities of each, and the wanted mask."""
    at = place(case)
    rough = tolerance_of(case.work.dtype)
    faults, shown = list[Fault](), list[Computed]()
    for lane, lanes, weights in seen.weights["out"].items():
        counts = count(weights[at.rows], rough)
        shown.append(Computed("out", *lane, lanes, pooled(counts.times[:, : at.tokens])))
        faults += forward_faults(case, at, counts, lane, rough, weights[at.rows])
    for name in [name for name in seen.weights if name != "out"]:
        for lane, lanes, weights in seen.weights[name].items():
            ahead = _forward_weights(case, seen, lane, name)[at.rows]
            own = weights[at.rows]
            if name != "dv":
                own = np.where(seen.blind[at.rows], ahead, own)
            shown.append(Computed(name, *lane, lanes, pooled(_gradient_times(own, ahead, at))))
            faults += gradient_faults(case, at, name, own, ahead, lane, seen.blind[at.rows])
    return _first_lanes(case, faults, seen), shown, pooled(at.wanted[:, : at.tokens])


def forward_faults(
    case: Case, at: Place, counts: Counts, lane: tuple[int, int], rough: float, weights: Array
) -> Iterator[Fault]:
    """Yields the fault of one lane's weights and their multiplicities, if there is one."""
    wrong, sees = counts.times != at.wanted, at.wanted.any(axis=1)
    whole = (np.abs(counts.total - 1) <= rough) | ~(counts.times > 0).any(axis=1)
    if wrong.any():
        kind = kind_of(case, at, counts.times, counts.uneven, whole)
        yield _fault(at, kind, "out", lane, wrong, counts.times)
        return
    if (counts.uneven & sees).any():
        fair = counts.total[:, None] / np.maximum(at.wanted.sum(axis=1, keepdims=True), 1)
        off = np.where(at.wanted & counts.uneven[:, None], np.abs(weights - fair), 0)
        wrong = (off > 0) & (off >= off.max(axis=1, keepdims=True) / 2)
        yield _fault(at, _unmerged(case), "out", lane, wrong, counts.times, weights=(weights, fair))
    elif (off := sees & (np.abs(counts.total - 1) > rough)).any():
        row = int(np.flatnonzero(off)[0])
        total, query = counts.total[row], int(at.queries[row])
        less = total < 1
        less = less and bool(at.padding.any() or case.ranks > 1)
        kind = "padding attended" if less else _unmerged(case)
        other = "; the rest goes to keys that hold no token" if less else ""
        yield Fault(
            kind,
            f"query {query} (rank {at.query_ranks[row]}, row {at.query_indices[row]}) attends the"
            f" right keys, but their weights sum to {total:.4g}{other}",
            query=query,
            query_rank=int(at.query_ranks[row]),
            query_index=int(at.query_indices[row]),
            batch=lane[0],
            head=lane[1],
            pairs=int(off.sum()),
        )


def gradient_faults(
    case: Case, at: Place, name: str, own: Array, ahead: Array, lane: tuple[int, int], blind: Array
) -> Iterator[Fault]:
    """Yields the fault of one lane's gradient if it disagrees with the forward pass."""
    rough, broken = 2 * tolerance_of(case.work.dtype), ~np.isfinite(own)
    if broken.any():
        kind = "not finite" if at.wanted.any(axis=1).all() else "empty rows"
        yield _fault(at, kind, name, lane, broken, np.full_like(own, np.nan))
        return
    tiny = rough / at.wanted.shape[1] / 4
    wrong = np.abs(own - ahead) > rough * np.abs(ahead) + tiny
    if not wrong.any():
        return
    flows = ahead > tiny
    gone = flows & (np.abs(own) < GONE * ahead)
    leaks = wrong & ~flows
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = (own / ahead)[wrong & flows]
    factor = float(np.median(ratio)) if ratio.size else 0.0
    times = _gradient_times(own, ahead, at)
    if leaks.any():
        kind = suspected(case, at, np.abs(own) > tiny, wrong) or "gradient leak"
    elif not (wrong & ~gone).any():
        kind = "gradient lost"
    elif np.all(np.abs(ratio - factor) <= SAME * abs(factor)):
        whole = (wrong | blind | ~flows).all()
        kind = "attended twice" if abs(factor - 2) < SAME and not whole else "gradient scaled"
    else:
        kind = "wrong gradient"
    yield _fault(at, kind, name, lane, wrong, times, factor)


def _gradient_times(own: Array, ahead: Array, at: Place) -> Array:
    """Returns gradients in units of the weights of the forward pass: [queries, keys]."""
    unit = np.where(ahead > 0, ahead, ahead.max(axis=1, keepdims=True))
    ratio = np.divide(own, unit, out=np.zeros_like(own), where=unit > 0)
    return np.nan_to_num(np.round(ratio[:, : at.tokens], 2), posinf=0.0, neginf=0.0)


def _forward_weights(case: Case, seen: Seen, lane: tuple[int, int], name: str) -> Array:
    """Returns the weights of out with which a lane's gradient must agree."""
    out = seen.weights["out"]
    head = lane[1] * (case.work.group if name in ("dk", "dv") else 1)
    return np.asarray(out.others.get((lane[0], head), out.first))


def _fault(
    at: Place,
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
    padding = column >= at.tokens
    seen = times[row, column] if column < times.shape[1] else 0
    wanted = int(at.wanted[row, column])
    query = f"query {at.queries[row]} (rank {at.query_ranks[row]}, row {at.query_indices[row]})"
    key = f"{'padding' if padding else f'key {at.keys[column]}'}"
    key += f" (rank {at.key_ranks[column]}, row {at.key_indices[column]})"
    number = int(wrong.sum())
    if weights:
        own, fair = weights[0][row, column], weights[1][row, 0]
        said = f"{query} attends {key} with the weight {own:.4g} instead of {fair:.4g}"
    elif not np.isfinite(seen):
        said = f"{tensor} of {query} and {key} is NaN or infinite"
    elif tensor == "out":
        said = f"{query} attends {key} {_times(seen)} instead of {_times(wanted)}"
    else:
        said = f"{tensor} of {query} and {key} is {seen:.3g}x what the forward pass attends"
        if kind == "gradient scaled":
            said += f", as is that of all wrong pairs: {factor:.3g}x"
    head = "KV head" if tensor in ("dk", "dv") else "head"
    pairs = "pair is" if number == 1 else "pairs are"
    return Fault(
        kind,
        f"{said}; {number} {pairs} wrong in {head} {lane[1]}: {KINDS[kind]}",
        pass_="forward" if tensor == "out" else "backward",
        tensor=tensor,
        query=int(at.queries[row]),
        key=None if padding else int(at.keys[column]),
        query_rank=int(at.query_ranks[row]),
        key_rank=int(at.key_ranks[column]),
        query_index=int(at.query_indices[row]),
        key_index=int(at.key_indices[column]),
        batch=lane[0],
        head=lane[1],
        computed=float(seen),
        wanted=float(wanted),
        pairs=number,
    )


def _unmerged(case: Case) -> str:
    """Returns the kind of fault of weights that are no averages."""
    return "unmerged partials" if case.ranks > 1 else "wrong weights"


def _times(number: float) -> str:
    return TIMES.get(int(number), f"{int(number)} times")


def _first_lanes(case: Case, faults: list[Fault], seen: Seen) -> list[Fault]:
    """Keeps the first fault of each tensor and kind."""
    kept: dict[tuple[str, str], Fault] = {}
    for fault in faults:
        kept.setdefault((fault.tensor, fault.kind), fault)
    return [*kept.values()]


def kinds(faults: list[Fault]) -> Counter[str]:
    """Counts faults by kind."""
    return Counter(fault.kind for fault in faults)
