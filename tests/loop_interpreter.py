"""Runs the loop form on arrays: its rows as they expand, its kinds as they are claimed.

Inputs and sums are kept per rank by (tensor, block), arrays [heads, tokens, ...]; a rectangle said
to be full, causal or strict is cut by index alone, others by the mask. Whatever a rank reads has
to have come there.
"""

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.ir import INPUTS, TENSORS, Attend, Plan, Step
from ringloom.planner.loops.expand import Expansion
from ringloom.planner.loops.form import Loops
from ringloom.planner.partitions import sorted_positions as tokens
from ringloom.runtimes.arrays import draw
from ringloom.runtimes.reference import dense
from ringloom.runtimes.reference import online_softmax as partial

Array = NDArray[np.float64]
Sum = tuple[Array, ...]  # OUT: o and lse; DQ: dq; DKV: dk and dv


class Machine:
    """The ranks of a plan, and what they have after its last step: `result(tensor)`."""

    def __init__(self, loops: Loops, plan: Plan, arrays: dict[str, Sum]) -> None:
        self.plan, self.work = plan, plan.workload
        self.inputs: list[dict[tuple[str, int], Sum]] = [{} for _ in range(plan.ranks)]
        self.sums: list[dict[tuple[str, int], Sum]] = [{} for _ in range(plan.ranks)]
        for tensor in INPUTS[plan.pass_]:
            for block, owner in enumerate(plan.side(tensor).owners):
                self.inputs[owner][tensor, block] = self.part(tensor, block, arrays[tensor])
        for held in plan.start:
            for block, rank in zip(*held.flat(), strict=True):
                for tensor in {"STATS" if t == "OUT" else t for t in held.tensors}:
                    self.inputs[rank][tensor, block] = self.part(tensor, block, arrays[tensor])
        expansion = Expansion(loops, plan)
        for t in range(loops.steps):
            step, rectangles = expansion.step(t), expansion.rectangles.items()
            self.run(step, [(s.kind, rows[t]) for s, rows in rectangles if t in rows])

    def place(self, tensor: str, block: int) -> tuple[slice, Array]:
        """The heads and the positions of a block."""
        one = self.plan.side(tensor).blocks[block]
        return slice(one.heads.start, one.heads.stop), tokens(one.positions)

    def part(self, tensor: str, block: int, arrays: Sum) -> Sum:
        heads, at = self.place(tensor, block)
        return tuple(x[heads][:, at] for x in arrays)

    def result(self, tensor: str, arrays: Sum) -> Sum:
        """Sums at their owners, written into whole arrays like these."""
        for block, owner in enumerate(self.plan.side(tensor).owners):
            heads, at = self.place(tensor, block)
            for x, y in zip(arrays, self.sums[owner].pop((tensor, block), ()), strict=False):
                x[np.ix_(np.arange(len(x))[heads], at)] = y
        assert not [k for s in self.sums for k in s if k[0] == tensor], (
            "sums are not at their owners"
        )
        return arrays

    def run(self, step: Step, rectangles: list[tuple[str, Attend]]) -> None:
        copies, sent = [], []
        for move in step.moves:
            for s, d, row in zip(move.src, move.dst, move.blocks, strict=True):
                for key in [(t, b) for t in move.tensors for b in row[row >= 0].tolist()]:
                    if not TENSORS[key[0]].accumulates:
                        copies.append((d, key, self.inputs[s][key]))
                    elif key in self.sums[s]:
                        sent.append((d, key, self.sums[s].pop(key)))
        for kind, attend in rectangles:
            for rank, q, kv in zip(attend.rank, attend.q, attend.kv, strict=True):
                self.attend(rank, q[q >= 0].tolist(), kv[kv >= 0].tolist(), kind)
        for rank, key, value in sent:
            self.add(rank, key, value)
        for rank, key, value in copies:
            self.inputs[rank][key] = value

    def sees(self, rows: Array, cols: Array, kind: str) -> NDArray[np.bool_]:
        """The mask of a rectangle, by its kind where that is one of indices."""
        i, j = np.argsort(np.argsort(rows))[:, None], np.argsort(np.argsort(cols))
        match kind:
            case "full":
                return np.ones((len(rows), len(cols)), np.bool_)
            case "causal" | "strict":
                return np.asarray(j <= i - (kind == "strict"))
        return self.work.allowed(rows, cols)

    def attend(self, rank: int, q: list[int], kv: list[int], kind: str) -> None:
        at = {s: [self.place(t, b)[1] for b in x] for s, t, x in (("q", "Q", q), ("kv", "KV", kv))}
        rows, cols = (np.unique(np.concatenate(x)) for x in at.values())
        sees = self.sees(rows, cols, kind)
        for a, i in zip(q, at["q"], strict=True):
            for b, j in zip(kv, at["kv"], strict=True):
                part = sees[np.ix_(np.searchsorted(rows, i), np.searchsorted(cols, j))]
                self.tile(rank, a, b, part)

    def tile(self, rank: int, a: int, b: int, sees: NDArray[np.bool_]) -> None:
        """One q block and one KV block, over the query heads that both have."""
        own, theirs = self.place("Q", a)[0], self.place("KV", b)[0]
        group, inputs = self.work.group, self.inputs[rank]
        heads = range(max(own.start, theirs.start * group), min(own.stop, theirs.stop * group))
        here, other = [h - own.start for h in heads], [h // group - theirs.start for h in heads]
        (q,), (k, v) = inputs["Q", a], inputs["KV", b]
        tensors, scale = (q[here], k[other], v[other]), self.work.softmax_scale
        if self.plan.pass_ == "forward":
            o, lse = np.zeros_like(q), np.full(q.shape[:2], -np.inf)
            o[here], lse[here] = partial.attend(*tensors, sees, scale)
            return self.add(rank, ("OUT", a), (o, lse))
        (dout,), (lse, delta) = inputs["DOUT", a], inputs["STATS", a]
        sums = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
        more = partial.gradients(*tensors, dout[here], lse[here], delta[here], sees, scale)
        for x, at, y in zip(sums, (here, other, other), more, strict=True):
            np.add.at(x, at, y)
        self.add(rank, ("DQ", a), sums[:1])
        self.add(rank, ("DKV", b), sums[1:])

    def add(self, rank: int, key: tuple[str, int], value: Sum) -> None:
        old = self.sums[rank].get(key)
        if old:
            value = (partial.merge(old, value) if key[0] == "OUT"
                     else tuple(x + y for x, y in zip(old, value, strict=True)))  # fmt: skip
        self.sums[rank][key] = value


def assert_exact(made: Plan, loops: Loops, seed: int) -> None:
    """Loops compute dense attention; the plan is of one batch row, in float64."""
    q, k, v, dout = draw(made.workload, seed)
    out, lse = (x[0] for x in dense.forward(made.workload, q, k, v))
    stats = lse, np.sum(out * dout[0], axis=-1)
    arrays = {"Q": (q[0],), "KV": (k[0], v[0]), "DOUT": (dout[0],), "STATS": stats}
    ran = Machine(loops, made, arrays)
    if made.pass_ == "forward":
        pairs = zip(
            ran.result("OUT", (np.zeros_like(out), np.full_like(lse, -np.inf))),
            (out, lse),
            strict=True,
        )
    else:
        grads = dense.backward(made.workload, q, k, v, dout)
        got = (
            *ran.result("DQ", (np.zeros_like(q[0]),)),
            *ran.result("DKV", (np.zeros_like(k[0]), np.zeros_like(v[0]))),
        )
        pairs = zip(got, (x[0] for x in grads), strict=True)
    for x, y in pairs:
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-12 if made.pass_ == "forward" else 1e-11)
