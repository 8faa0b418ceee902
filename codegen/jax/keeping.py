"""What the forward pass keeps for the backward pass: what its exchanges brought."""

from dataclasses import dataclass

import numpy as np

from codegen.jax.trace import trace
from codegen.programs import Program
from planner.errors import PlanError
from planner.loops.form import AllToAll, Gather
from planner.loops.values import held

Exchange = Gather | AllToAll


@dataclass(frozen=True)
class Kept:
    """The exchanges of the forward pass whose values are kept, by side; none: nothing is kept."""

    q: Exchange | None = None
    kv: Exchange | None = None

    @property
    def names(self) -> frozenset[str]:
        """The names of their values."""
        return frozenset(s.name for s in (self.q, self.kv) if s)

    @property
    def saved(self) -> str:
        """The names of what is saved, as a backward pass takes them."""
        queries = ["held_q", "held_out", "held_lse"] * (self.q is not None)
        return ", ".join([*queries, *["held_kv"] * (self.kv is not None)])


def kept(program: Program) -> Kept:
    """What a backward plan holds at its start, in the words of the forward loops."""
    backward = program.backward
    if backward is None or not backward.start:
        return Kept()
    assert program.loops
    tensors = {tensor for node in backward.start for tensor in node.tensors}
    if not tensors <= {"Q", "OUT", "KV"} or len(tensors & {"Q", "OUT"}) == 1:
        raise PlanError(f"a backward pass that holds {', '.join(sorted(tensors))}")
    stay = trace(program.loops[0], program.forward).stay
    sides = dict[str, Exchange]()
    for side in ("q", "kv"):
        table = held(backward, side)
        for s in program.loops[0].statements:
            if table is not None and isinstance(s, Exchange):
                brought = stay.get((s.name, side))
                if brought is not None and np.array_equal(brought, table):
                    sides[side] = s
        if table is not None and side not in sides:
            raise PlanError("a backward pass that holds what no exchange brought")
    return Kept(sides.get("q"), sides.get("kv"))
