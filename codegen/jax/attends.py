"""The attends of a pass as lines: calls on what a device has, cases, loops over tiles."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from codegen.jax.cases import MASKED, WHOLE, Case, Group, groups, switched
from codegen.jax.exchanges import Over, numbers
from codegen.jax.hops import Hops, Steps
from codegen.jax.pieces import Slices, tiling
from codegen.jax.runs import Op
from codegen.jax.values import values
from codegen.lowered.conditions import Domain
from codegen.lowered.owners import owner
from codegen.lowered.shares import Shares
from codegen.lowered.variables import Value
from codegen.lowered.walk import Cell, Walk, seen
from codegen.lowering.keeping import Kept
from codegen.programs import Program
from codegen.text import Names
from planner.errors import PlanError
from planner.ir import ACCUMULATORS, TENSORS, Plan
from planner.loops.form import HELD, OWN, Attend, Exchange, Expr, Loops
from planner.partitions import Side

SOME = "some heads"  # of the queries that a device owns


def even(side: Side, ranks: int) -> bool:
    """True if blocks have as many tokens each, and ranks as many of them: none is padded.

    And chunks are numbered in the order of the sequence, as `causal` needs them.
    """
    places = np.unique(side.owners.astype(np.int64) * len(side.chunks) + side.chunk)
    held = np.bincount(places // len(side.chunks), minlength=ranks)
    first = [min((p[0] for p in chunk), default=0) for chunk in side.chunks if any(chunk)]
    return len({*side.sizes.tolist()}) == 1 == len({*held.tolist()}) and first == sorted(first)


@dataclass
class Attends:
    """A pass on its way to text; `defined`: sums assigned so far, `written`: in this step."""

    plan: Plan
    loops: Loops
    walked: Walk
    names: Names
    hops: Hops
    program: Program
    constants: dict[str, str]  # of exchanges
    stats: bool  # True if (lse, delta) travel, and not the output
    kept: Kept
    defined: set[Cell] = field(default_factory=set)
    written: dict[Cell, Steps] = field(default_factory=dict)
    positions: dict[str, str] = field(default_factory=dict)  # of tokens: name -> value
    started: dict[Value, str] = field(default_factory=dict)  # of this step: what values start as

    def __post_init__(self) -> None:
        self.forward = self.plan.pass_ == "forward"
        kept = [s.name for s in self.kept.values()]
        self.made = values(self.loops, self.plan.pass_, self.walked, kept if self.forward else ())
        self.made.inputs["q", SOME] = "part_q" if self.forward else "part"
        self.made.sums |= {("OUT", SOME): "part_out, part_lse", ("DQ", SOME): "part_dq"}
        both = [self.plan.partition.side(side) for side in ("q", "kv")]
        self.uneven = not all(even(side, self.plan.ranks) for side in both)
        self.slices = Slices(both[0].sizes.max() == both[1].sizes.max())
        attends = [s for s in self.loops.statements if isinstance(s, Attend)]
        cut = any(s.kind == "strict" or any(p.pieces for p in (*s.q, *s.kv)) for s in attends)
        self.meet = "meet_part" if cut else "meet"

    @property
    def outputs_alone(self) -> bool:
        """True if outputs come back to their owners, and nobody there reads their log-sum-exp."""
        q = self.kept.get("q") if self.forward and not self.plan.workload.sinks else None
        return q is not None and self.over(q).whole

    def over(self, s: Exchange) -> Over:
        """The calls over an exchange."""
        return Over(s, self.loops, self.program, self.constants)

    def groups(self, steps: Sequence[int], cells: tuple[Cell, ...] = ()) -> list[Group]:
        """The attends of some steps, if told so only those that add to these sums."""
        tensors = ACCUMULATORS[self.plan.pass_]
        made = groups(self.loops, self.walked, self.made, steps, tensors, self.uneven)
        return [group for group in made if group.cells == (cells or group.cells)]

    def slice_ops(self, attends: Sequence[Group]) -> Iterator[Op]:
        """Names for the pieces that attends need."""
        for case in (case for group in attends for case in group.cases):
            q, kv = self.made.inputs["q", case.q], f"{self.made.inputs['kv', case.kv]}[0]"
            q = q if self.forward else f"{q}[0]"
            for name, value in self.slices.definitions(case, q, kv):
                yield self.assign(name, value)

    def fresh(self, cell: Cell) -> bool:
        """True for sums that a message takes along in the next step, all of them."""
        return not self.walked.lasting(cell)[1]

    def starts(self, cell: Cell, steps: Steps) -> bool:
        """True if what is added next to these sums, in some steps, is the first."""
        before = {*steps} & {*self.written.get(cell, ())}
        return not before and (self.fresh(cell) or cell not in self.defined)

    def write(self, cells: tuple[Cell, ...], steps: Steps) -> None:
        """Note that something is added to sums."""
        self.defined |= {*cells}
        self.written |= {cell: (*self.written.get(cell, ()), *steps) for cell in cells}

    def zero(self, cell: Cell, case: Case | None = None) -> str:
        """Sums that nothing has been added to."""
        side, value = TENSORS[cell[0]].side, cell[1]
        value = (case.q if side == "q" else case.kv) if case else value
        came = case or value in {HELD, *self.loops.exchanges}
        name = self.input(side, value) if came else ""
        if self.forward:
            return f"nothing({name or 'q'})"
        if side == "kv":
            return f"zeros({name or '(k, v)'})"
        return f"zeros({name}[0])" if name and value != OWN else "zeros(q)"

    def attend(self, group: Group, steps: Steps, names: Names, closures: bool) -> Iterator[Op]:
        """One call, or one per case of which a device has one; `closures`: as in `switched`."""
        if len(steps) < len(group.cases[0].active):
            group, *others = self.groups(steps, group.cells)
            if others:
                raise PlanError("attention calls exclude each other in some steps of a loop")
        if any(case.head is not None for case in group.cases):
            yield from self.of_heads(group, steps, names, closures)
            return
        if group.cases[0].kind in MASKED and len(group.cases) == 1:
            with suppress(PlanError):
                yield self.tiles(group.cases[0], group.cells, steps)
                return
        on, group = Domain(self.loops, steps, names), group if closures else group.alike()
        bases = [self.base(cell, group.cases[0], steps) for cell in group.cells]
        first = all(self.starts(cell, steps) for cell in group.cells)
        alone = closures or (len(group.cases) == 1 and group.always)  # no operands to share
        calls = [self.call(c, group, first and alone, steps, names) for c in group.cases]
        targets = ", ".join(self.made.sums[cell] for cell in group.cells)
        self.write(group.cells, steps)
        yield Op(switched(group, calls, bases, targets, on, closures))

    def of_heads(self, group: Group, steps: Steps, names: Names, closures: bool) -> Iterator[Op]:
        """Attend with some heads of what a device owns, then put their sums beside the others."""
        (cell, *others), slices = group.cells, len(self.plan.partition.q.slices)
        head, part, own = group.cases[0].head or Expr(), (cell[0], SOME), self.made.inputs["q", OWN]
        alike = all((case.q, case.head) == (OWN, head) for case in group.cases)
        if not alike:
            raise PlanError("in a step, ranks compute different groups of heads")
        self.written.pop(part, None)
        shares = Shares(True, head, slices, slices)
        picked = f"some_heads({own if self.forward else 'x'}, {numbers(shares, names)})"
        picked = picked if self.forward else f"tuple({picked} for x in {own})"
        yield self.assign(self.made.inputs["q", SOME], picked)
        cases = tuple(replace(case, q=SOME, head=None) for case in group.cases)
        yield from self.attend(Group((part, *others), cases), steps, names, closures)
        yield self.put(cell, self.made.sums[part], shares, names)

    def tiles(self, case: Case, cells: tuple[Cell, ...], steps: Steps) -> Op:
        """A loop over tiles of one shape; PlanError where ranks have none."""
        attended = self.walked.attended[case.statements[0]]
        if self.uneven or self.stats or len(case.statements) > 1:
            raise PlanError("the tiles of an attention call differ in shape")
        made = {tiling(self.plan, attended[t], self.loops.coordinates(), self.names) for t in steps}
        if len(made) > 1:
            raise PlanError("the tiles of an attention call change with the step")
        ((ends, diagonal),) = made
        q, kv = self.input("q", case.q), self.input("kv", case.kv)
        start = f"({', '.join(self.base(cell, case, steps) for cell in cells)})"
        start = start[1:-1] if start.startswith("(nothing(") else start
        self.write(cells, steps)
        sums = ", ".join(self.made.sums[cell] for cell in cells)
        meet = "meet_tile" if self.forward else "meet_tile_backward"
        self.positions["ends"] = f"{', '.join(ends)}{',' * (len(ends) == 1)}"
        arguments = [meet, start, q, kv, "ends", *["diagonal=False"] * (not diagonal)]
        return self.assign(sums, f"over_tiles({', '.join(arguments)})")

    def input(self, side: str, value: str) -> str:
        """The variable of an input; in the step in which it starts, that of what it starts as."""
        return self.started.get((side, value), self.made.inputs[side, value])

    def base(self, cell: Cell, case: Case, steps: Steps) -> str:
        """Returns the sums that an attend adds to."""
        return self.zero(cell, case) if self.starts(cell, steps) else self.made.sums[cell]

    def call(
        self, case: Case, group: Group, first: bool, steps: Steps, names: Names
    ) -> tuple[str, list[str]]:
        """The name of the function and its arguments."""
        q, kv = self.input("q", case.q), self.input("kv", case.kv)
        way = "" if self.forward else "_backward"
        bases = [self.base(cell, case, steps) for cell in group.cells]
        bases = [
            x for b in bases for x in ([f"*{b}"] if b.startswith("nothing(") else b.split(", "))
        ]
        if case.kind in MASKED:
            if case.kind == WHOLE:
                self.check_whole(case, steps)
            places = [self.places(case, side, steps, names) for side in ("q", "kv")]
            if first:
                return f"attend_masked{way}", [q, kv, *places, "allowed"]
            return f"meet_masked{way}", [*bases, q, kv, *places]
        rows, cols, causal = self.slices.of(case)
        how = ["causal=True"] * causal
        if first and rows is None and (cols is None or self.forward):
            keys = kv if cols is None else f"[x[:, :, {cols}] for x in {kv}]"
            return f"attend{way}", [q, keys, *how]
        cut = [f"{name}={x}" for name, x in (("rows", rows), ("cols", cols)) if x]
        return f"{self.meet}{way}", [*bases, q, kv, *cut, *how]

    def check_whole(self, case: Case, steps: Steps) -> None:
        """Raise PlanError if queries and keys see each other outside of the rectangle."""
        for r in (self.walked.attended[s].get(t) for t in steps for s in case.statements):
            if r is None:
                continue
            if any((row < 0).any() for row in r.rows):
                raise PlanError("some ranks get more pieces of the sequence than others")
            if (seen(self.plan, r.rows) & ~r.attended(self.plan.partition, r.rows)).any():
                raise PlanError("attention calls differ in shape, and leave out a part of the mask")

    def places(self, case: Case, side: str, steps: Steps, names: Names) -> str:
        """The positions of the tokens of a value, as text."""
        seq = ", seq" * self.program.free  # as long as the arrays are
        apart = self.program.layout.kv != self.program.layout.q
        of = "keys_of" if side == "kv" and apart else "tokens_of"
        value = (case.q if side == "q" else case.kv).replace(SOME, OWN)
        held = self.kept.get(side) if value == HELD else None
        if exchange := self.loops.exchanges.get(value, held):
            every, order = "jnp.arange(RANKS)", self.over(exchange).order
            if len(self.loops.mesh) > 1 and exchange.part.value == OWN:
                every = "outer * INNER + jnp.arange(INNER)"
                every = "jnp.arange(OUTER) * INNER + inner" if exchange.axis == 0 else every
            name = "all_kv_at" if side == "kv" else "all_at"
            self.positions[name] = f"{of}({every}{seq}).reshape(-1)"
            if not order and exchange.part.value == OWN:
                return name
            if self.uneven or not self.program.layout.q.pieces:
                raise PlanError("exchanged pieces are not of one length and in order")
            if len(self.loops.mesh) > 1:
                self.positions[name] = f"jnp.sort({self.positions[name]})"
                return name
            return f"jnp.arange({seq.removeprefix(', ') or ('KV_SEQ' if side == 'kv' else 'SEQ')})"
        self.positions |= {"at": f"tokens_of(rank{seq})", "kv_at": "keys_of(rank)"}
        on = [t for t in steps if any(t in self.walked.attended[s] for s in case.statements)]
        rank = owner(self.plan, self.walked, side, value, Domain(self.loops, on, names)).text
        return ("kv_at" if of == "keys_of" else "at") if rank == "rank" else f"{of}({rank}{seq})"

    # ---- assignments

    def put(self, cell: Cell, came: str, shares: Shares, names: Names) -> Op:
        """Sums that are all there are, or those of some heads beside others."""
        name, first = self.made.sums[cell], cell not in self.defined
        self.defined.add(cell)
        if shares.every > 1:
            totals = self.zero(cell) if first else f"({name})" if ", " in name else name
            came = f"({came})" if ", " in name else came
            came = f"with_heads({totals}, {came}, {numbers(shares, names)})"
        elif not first:
            raise PlanError("partial results come back to a rank that has others")
        elif self.outputs_alone:
            name = "out"
        return self.assign(name, came)

    def assign(self, name: str, value: str) -> Op:
        return Op((f"{name} = {value}",))
