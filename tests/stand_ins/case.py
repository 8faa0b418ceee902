"""case_of(program)   random inputs of a program, and the results that are wanted of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ringloom.codegen.programs import Program
from ringloom.planner.masks.mask import SideName
from ringloom.planner.masks.regions import Ints, Region
from stand_ins.attention import Array, Pairs, attend, attend_backward

SIDE: dict[str, SideName] = {
    **dict.fromkeys(("q", "dout", "out", "dq", "dsinks"), "q"),
    **dict.fromkeys(("k", "v", "dk", "dv"), "kv"),
}
CLOSE = 1e-8


@dataclass(frozen=True)
class Case:
    """Whole arrays [batch, heads, tokens, width], and which of the tokens each rank has.

    sinks: [heads], or None; of `results`, "dsinks" is what each query gives to their gradient.
    """

    inputs: Mapping[str, Array]
    sinks: Array | None
    results: Mapping[str, Array]
    at: Mapping[SideName, Sequence[Ints]]
    region: Region

    def part(self, name: str, rank: int) -> Array:
        """A rank's part of an input or a result."""
        whole = {**self.inputs, **self.results}[name]
        return whole[:, :, self.at[SIDE[name]][rank]]

    def length(self, name: str) -> int:
        """The tokens of all ranks on the side of an input."""
        return int(self.inputs[name].shape[2])

    def right(self, name: str, rank: int, x: Any) -> bool:
        """True if x is the result that a rank should have."""
        wanted = self.part(name, rank)
        if not isinstance(x, np.ndarray):
            return False
        if name == "dsinks":
            wanted = wanted.sum((0, 2, 3))
        like = x.shape == wanted.shape and x.dtype == wanted.dtype
        return like and np.allclose(np.asarray(x), wanted, CLOSE, CLOSE)


def sizes(program: Program) -> tuple[int, int, int, int]:
    """Heads and tokens of the queries, and of the keys: as few as the program takes."""
    work = program.work
    heads, kv_heads = work.heads, work.kv_heads
    if program.any_heads:
        heads, kv_heads = (2, 1) if kv_heads < heads else (1, 1)
    seq, kv_seq = (
        (3 * program.layout.multiple,) * 2 if program.any_length else (work.seq, work.kv_seq)
    )
    return heads, seq, kv_heads, kv_seq


def case_of(program: Program) -> Case:
    """A case of these sizes."""
    (heads, seq, kv_heads, kv_seq), layout = sizes(program), program.layout
    forms = layout.q, layout.kv
    if program.any_length:
        forms = replace(layout.q, tokens=seq), replace(layout.kv, tokens=kv_seq)
    at: dict[SideName, Sequence[Ints]] = {"q": [*forms[0].shards()], "kv": [*forms[1].shards()]}
    width, v_width, seed = 2, 3 if program.unequal_head_dims else 2, np.random.default_rng(0)
    shapes = {
        "q": (heads, seq, width),
        "k": (kv_heads, kv_seq, width),
        "v": (kv_heads, kv_seq, v_width),
        "dout": (heads, seq, v_width),
    }
    if program.backward is None:
        del shapes["dout"]
    inputs = {name: seed.uniform(-1, 1, (2, *shape)) for name, shape in shapes.items()}
    sinks = seed.uniform(-1, 1, heads) if program.work.sinks else None
    region = program.work.mask.region()
    pairs = Pairs(region, np.arange(seq) + kv_seq - seq, np.arange(kv_seq))
    return Case(inputs, sinks, results(inputs, sinks, pairs), at, region)


def results(inputs: Mapping[str, Array], sinks: Array | None, pairs: Pairs) -> dict[str, Array]:
    """Output, and gradients where there is dout."""
    q, k, v = (inputs[name] for name in ("q", "k", "v"))
    out, lse = attend(q, k, v, pairs)
    if sinks is not None:
        total = np.logaddexp(lse, sinks[:, None, None])
        out, lse = out * np.exp(lse - total), total
    if (dout := inputs.get("dout")) is None:
        return {"out": out}
    delta = (dout * out).sum(3, keepdims=True)
    dq, dk, dv = attend_backward(q, dout, delta, lse, k, v, pairs)
    grads = {"out": out, "dq": dq, "dk": dk, "dv": dv}
    if sinks is not None:
        grads["dsinks"] = -np.exp(sinks[:, None, None] - lse) * delta
    return grads
