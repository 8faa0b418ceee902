"""Compares a program's results with dense attention."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ringloom.planner.errors import RingloomError
from ringloom.runtimes.arrays import Array
from ringloom.runtimes.judging.case import Case, Layout, misplacement
from ringloom.runtimes.reference import dense
from ringloom.runtimes.validation import EXACT, GRADIENTS, distance

LISTED = 8  # results with NaN to name
BLOCK = 1 << 22  # scores of a head that dense attention holds at once
Track = Callable[[str, int, int], None]  # takes a stage's name, steps done, and steps in total


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of a program.

    `errors` and `tolerances` are largest absolute differences by name: "forward", and with
    gradients "dq", "dk", "dv" and "dsink". `reason` explains why a program without errors is not
    exact. `queries`: the number of compared queries. `fault`: a sentence on the first pair with a
    wrong weight, if probing located one.
    """

    exact: bool
    reason: str = ""
    errors: dict[str, float] = field(default_factory=dict)
    tolerances: dict[str, float] = field(default_factory=dict)
    queries: int = 0
    fault: str = ""


def compare(
    case: Case, inputs: Sequence[Array], parts: Sequence[Sequence[Array]], track: Track
) -> Verdict:
    """Compares the parts of ranks with dense attention; raises RingloomError for a refusal."""
    for one in parts:
        if len(one) == 1 and one[0].dtype.kind == "U":
            raise RingloomError(str(one[0]))
    names = ["forward", *GRADIENTS[: len(inputs) - 1] * case.backward]
    q, kv = ([one[at] for one in parts if len(one) >= 2] for at in (-2, -1))
    if wrong := misplacement(case, q, kv):
        return Verdict(False, f"positions are no layout: {wrong}")
    if len({len(one) for one in parts} | {len(names) + 2}) > 1:
        return Verdict(False, f"ranks have {[*map(len, parts)]} results, not {len(names) + 2}")
    truths = dense_results(case, inputs, track)
    sides = dict(zip(names, (q, q, kv, kv), strict=False))
    rows, errors, lost = case.rows(), dict[str, float](), list[str]()
    for number, (name, truth) in enumerate(zip(names, truths, strict=True)):
        shards = [one[number] for one in parts]
        result = joined(shards, sides.get(name), truth.shape)
        if result is None:
            shapes = [[*x.shape] for x in shards]
            return Verdict(False, f"{name} of ranks is of shapes {shapes}, of {[*truth.shape]}")
        if name == "forward":  # gradients of the other queries are 0
            result, truth = result[:, :, rows], truth[:, :, rows]
        errors[name] = distance(result, truth)
        if np.isnan(errors[name]):
            lost += [f"{name} of rank {n}" for n, x in enumerate(shards) if np.isnan(x).any()]
    limits = EXACT[case.work.dtype]
    tolerances = {name: limits[name != "forward"] for name in names}
    exact = all(errors[name] <= tolerances[name] for name in names)
    reason = f"NaN in {', '.join(lost[:LISTED])}{', ...' * (len(lost) > LISTED)}" if lost else ""
    return Verdict(exact, reason, errors, tolerances, len(rows))


def joined(shards: Sequence[Array], layout: Layout | None, shape: tuple[int, ...]) -> Array | None:
    """Returns the whole result in sequence order, or the sum of shards if it has no layout.

    Returns None if shards have other shapes.
    """
    if layout is None:
        return np.sum(shards, axis=0) if {x.shape for x in shards} == {shape} else None
    whole = np.full(shape, np.nan)
    for shard, places in zip(shards, layout, strict=True):
        if shard.shape != (*shape[:2], len(places), shape[3]) or shard.dtype.kind != "f":
            return None
        whole[:, :, places[places >= 0]] = shard[:, :, places >= 0]
    return whole


def dense_results(case: Case, inputs: Sequence[Array], track: Track) -> list[Array]:
    """Returns dense results, a block of queries at a time; out is 0 at other queries."""
    work, rows = case.work, case.rows()
    q, k, v, dout, *sinks = inputs
    sunk = sinks[0] if sinks else None
    blocks = np.array_split(rows, -(-len(rows) * work.kv_seq // BLOCK))
    out, dq, dk, dv, *dsinks = map(np.zeros_like, (dout, q, k, v, *sinks))
    for done, block in enumerate(blocks):
        track("comparing with dense attention", done, len(blocks))
        out[:, :, block] = dense.forward(work, q, k, v, sinks=sunk, rows=block)[0]
        if case.backward:
            shares = dense.backward(work, q, k, v, dout, sinks=sunk, rows=block)
            dq[:, :, block] = shares[0]
            for total, share in zip((dk, dv, *dsinks), shares[1:], strict=True):
                total += share
    return [out, dq, dk, dv, *dsinks] if case.backward else [out]
