"""Compares a program's results with dense attention."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ringloom.planner.errors import RingloomError
from ringloom.runtimes.arrays import Array
from ringloom.runtimes.judging.case import Case, Layout, layouts_error
from ringloom.runtimes.reference import dense
from ringloom.runtimes.validation import EXACT, GRADIENTS, distance

MAX_NAMED = 8  # results with NaN to name
MAX_SCORES = 1 << 22  # scores of a head that dense attention computes at a time
Track = Callable[[str, int, int], None]  # takes a stage's name, completed steps, and all steps


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of a program.

    `errors` and `tolerances`: largest absolute differences by name, "forward", and with gradients
    "dq", "dk", "dv" and "dsink". `reason`: why a program without measured errors is not exact.
    `queries`: the number of compared queries. `fault`: a sentence on the first pair with a wrong
    weight, if probing located one.
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
    for results in parts:
        if len(results) == 1 and results[0].dtype.kind == "U":
            raise RingloomError(str(results[0]))
    names = ["forward", *GRADIENTS[: len(inputs) - 1] * case.backward]
    q, kv = ([results[side] for results in parts if len(results) >= 2] for side in (-2, -1))
    if error := layouts_error(case, q, kv):
        return Verdict(False, f"positions do not form a layout: {error}")
    if len({len(results) for results in parts} | {len(names) + 2}) > 1:
        return Verdict(False, f"ranks return {[*map(len, parts)]} results, not {len(names) + 2}")
    truths = dense_results(case, inputs, track)
    sides = dict(zip(names, (q, q, kv, kv), strict=False))
    rows, errors, with_nan = case.rows(), dict[str, float](), list[str]()
    for number, (name, truth) in enumerate(zip(names, truths, strict=True)):
        shards = [results[number] for results in parts]
        result = unshard(shards, sides.get(name), truth.shape)
        if result is None:
            shapes = [[*x.shape] for x in shards]
            return Verdict(
                False, f"{name} has shards of shapes {shapes}, of {[*truth.shape]} in total"
            )
        if name == "forward":  # gradients of the other queries are 0
            result, truth = result[:, :, rows], truth[:, :, rows]
        errors[name] = distance(result, truth)
        if np.isnan(errors[name]):
            with_nan += [f"{name} of rank {n}" for n, x in enumerate(shards) if np.isnan(x).any()]
    limits = EXACT[case.work.dtype]
    tolerances = {name: limits[name != "forward"] for name in names}
    exact = all(errors[name] <= tolerances[name] for name in names)
    listed = ", ".join(with_nan[:MAX_NAMED]) + ", ..." * (len(with_nan) > MAX_NAMED)
    reason = f"NaN in {listed}" if with_nan else ""
    return Verdict(exact, reason, errors, tolerances, len(rows))


def unshard(shards: Sequence[Array], layout: Layout | None, shape: tuple[int, ...]) -> Array | None:
    """Returns the whole result in sequence order, or the sum of shards without a layout.

    Returns None if shards have wrong shapes.
    """
    if layout is None:
        return np.sum(shards, axis=0) if {x.shape for x in shards} == {shape} else None
    whole = np.full(shape, np.nan)
    for shard, positions in zip(shards, layout, strict=True):
        if shard.shape != (*shape[:2], len(positions), shape[3]) or shard.dtype.kind != "f":
            return None
        whole[:, :, positions[positions >= 0]] = shard[:, :, positions >= 0]
    return whole


def dense_results(case: Case, inputs: Sequence[Array], track: Track) -> list[Array]:
    """Returns the dense results for the compared queries; out is 0 at other queries."""
    work, rows = case.work, case.rows()
    q, k, v, dout, *optional = inputs
    sinks = optional[0] if optional else None
    blocks = np.array_split(rows, -(-len(rows) * work.kv_seq // MAX_SCORES))
    out, dq, dk, dv, *dsinks = map(np.zeros_like, (dout, q, k, v, *optional))
    for number, block in enumerate(blocks):
        track("comparing with dense attention", number, len(blocks))
        out[:, :, block] = dense.forward(work, q, k, v, sinks=sinks, rows=block)[0]
        if case.backward:
            gradients = dense.backward(work, q, k, v, dout, sinks=sinks, rows=block)
            dq[:, :, block] = gradients[0]
            for total, part in zip((dk, dv, *dsinks), gradients[1:], strict=True):
                total += part
    return [out, dq, dk, dv, *dsinks] if case.backward else [out]
