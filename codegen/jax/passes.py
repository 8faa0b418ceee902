"""A pass as the body of a Python function: steps one after the other, equal ones as a loop."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from codegen.jax.cases import Case, Group, groups
from codegen.jax.exchanges import Exchanges
from codegen.jax.hops import Hops, is_stepwise
from codegen.jax.runs import Block, Op, Run
from codegen.jax.slices import Slices
from codegen.jax.switch import switched
from codegen.jax.trace import trace
from codegen.jax.values import Key, values
from codegen.jax.words import Domain, Names, call
from planner.errors import PlanError
from planner.ir import ADDS, TENSORS, Plan
from planner.loops.form import (
    OWN,
    AllToAll,
    Attend,
    Gather,
    Loops,
    Return,
    Send,
    Start,
    Statement,
)

Numbered = list[tuple[int, Statement]]


@dataclass
class Pass:
    """One pass on its way to text; `defined`: the sums that have been assigned so far."""

    plan: Plan
    loops: Loops
    names: Names
    hops: Hops
    exchanges: Exchanges
    stats: bool  # True if (lse, delta) travel, and not the output
    defined: set[Key] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.forward = self.plan.pass_ == "forward"
        self.rows = trace(self.loops, self.plan)
        self.made = values(self.loops, self.plan.pass_, self.rows)
        self.sides = [TENSORS[t].side for t in ADDS[self.plan.pass_]]
        self.at = self.loops.coordinates()
        sizes = [set(self.plan.partition.side(side).sizes.tolist()) for side in ("q", "kv")]
        if any(len(x) > 1 for x in sizes):
            raise PlanError("pieces that are not equal")
        self.slices = Slices((sizes[0].pop(), sizes[1].pop()))

    def blocks(self, runs: Sequence[Run]) -> list[Block]:
        """The lines of all runs, in order."""
        opening = Block(None, tuple(self.opening()))
        return [opening, *(self.block(run) for run in runs)]

    def opening(self) -> Iterator[Op]:
        """Names for what a device owns."""
        own_kv = self.made.inputs.get((OWN, "kv"))
        if own_kv:
            yield self.assign(4, own_kv, "k, v")
        own_q = self.made.inputs.get((OWN, "q"))
        if own_q and not self.forward:
            yield self.assign(4, own_q, "q, dout, lse, delta" if self.stats else "q, dout, out, lse")

    def block(self, run: Run) -> Block:
        """The lines of a run; what a loop adds to is there before it."""
        inside = run.kind != "straight"
        names = self.names if inside else self.names.at(run.steps[0])
        before = list(self.beginnings(run)) if inside else []
        sliced = [*self.slice_ops(self.groups(run.steps))]
        body = [*self.ops(run, names, 8 if inside else 4)]
        if not inside:
            body, sliced = [*sliced, *body], []
        return Block(run, tuple(body), (*before, *sliced))

    def beginnings(self, run: Run) -> Iterator[Op]:
        """Sums that a loop adds to and that nothing has been added to before."""
        cells = [cell for group in self.groups(run.steps) for cell in group.cells]
        for n, s in enumerate(self.loops.statements):
            if isinstance(s, Send) and (n, TENSORS[s.tensors[0]].side) in self.made.cells:
                if any(map(s.when.on, run.steps)):
                    cells.append(self.made.cells[n, TENSORS[s.tensors[0]].side])
        for cell in dict.fromkeys(cells):
            if cell not in self.defined and not self.fresh(cell):
                yield self.assign(4, self.made.sums[cell], self.zero(cell))
                self.defined.add(cell)

    # ---- the lines of a step

    def ops(self, run: Run, names: Names, indent: int) -> Iterator[Op]:
        """Sums leave; attends add; sums arrive; inputs go on, exchanges and their returns."""
        active = [
            (n, s) for n, s in enumerate(self.loops.statements) if any(map(s.when.on, run.steps))
        ]
        for _, s in active:
            if isinstance(s, Start) and not TENSORS[s.tensors[0]].accumulates:
                yield from self.start(s, indent)
        self.written = set[Key]()
        attends = self.groups(run.steps)
        added = {cell for group in attends for cell in group.cells}
        arriving, late = [], []
        for n, s in active:
            if isinstance(s, Send) and TENSORS[s.tensors[0]].accumulates:
                cell = self.made.cells[n, TENSORS[s.tensors[0]].side]
                message = self.message(n, s, run, names)
                taken = self.made.taken[n]
                if {cell, taken} & added or cell == taken:
                    name = self.arriving(cell)
                    yield self.assign(indent, name, message)
                    arriving.append((cell, name))
                else:
                    late.append((cell, message))
        for group in attends:
            yield self.attend(group, run, names, indent)
        for cell, text in (*arriving, *late):
            yield self.arrive(cell, text, indent)
        for n, s in active:
            if isinstance(s, Send) and not TENSORS[s.tensors[0]].accumulates:
                yield self.forward_input(n, s, run, names, indent)
            elif isinstance(s, Gather | AllToAll):
                yield self.exchange(s, indent)
            elif isinstance(s, Return):
                yield self.bring_back(n, s, indent)

    def groups(self, steps: Sequence[int]) -> list[Group]:
        return groups(self.loops, self.rows, self.made, steps, self.sides)

    def start(self, s: Start, indent: int) -> Iterator[Op]:
        side = TENSORS[s.tensors[0]].side
        name, source = (self.made.inputs[v, side] for v in (s.name, s.part.value))
        if s.part.pieces or s.part.heads:
            raise PlanError("a value that starts as some pieces of another")
        if name != source:
            yield self.assign(indent, name, source)

    def message(self, n: int, s: Send, run: Run, names: Names) -> str:
        """A call that sends sums and gives those that arrive."""
        name = self.made.sums[self.made.taken[n]]
        if self.made.taken[n] not in self.defined:
            raise PlanError("sums that are sent before there are any")
        text = f"({name})" if ", " in name else name
        home = self.made.cells[n, TENSORS[s.tensors[0]].side][0] == OWN
        title = "send_home" if home and is_stepwise(s) else "pass_on"
        return self.hops.add(title, s, run.steps, self.names, True).of(text, names.step)

    def arriving(self, cell: Key) -> str:
        return ", ".join(f"arriving_{x}" for x in self.made.sums[cell].split(", "))

    def arrive(self, cell: Key, text: str, indent: int) -> Op:
        """Add what arrives to sums, or let it be the sums."""
        name, first = self.made.sums[cell], self.starts(cell)
        self.written.add(cell)
        self.defined.add(cell)
        if first:
            return self.assign(indent, name, text)
        if ", " in name:
            more = text if ", " in text and "(" not in text else f"*{text}"
            return self.assign(indent, name, f"merge({name}, {more})")
        return self.assign(indent, name, f"add({name}, {text})")

    def forward_input(self, n: int, s: Send, run: Run, names: Names, indent: int) -> Op:
        """Send inputs; what arrives has its name from the next step on."""
        side = TENSORS[s.tensors[0]].side
        if len(s.parts) > 1 or s.parts[0].pieces or s.parts[0].heads:
            raise PlanError("messages of some pieces of a value")
        source, name = (self.made.inputs[v, side] for v in (s.parts[0].value, s.name))
        title = "lend" if is_stepwise(s) else "pass_on"
        hop = self.hops.add(title, s, run.steps, self.names, False)
        return self.assign(indent, name, hop.of(source, names.step))

    def exchange(self, s: Gather | AllToAll, indent: int) -> Op:
        side = TENSORS[s.tensors[0]].side
        source, name = (self.made.inputs[v, side] for v in (s.part.value, s.name))
        single = self.forward and side == "q"
        return self.assign(indent, name, self.exchanges.text(s, source, single, self.loops))

    def bring_back(self, n: int, s: Return, indent: int) -> Op:
        side = TENSORS[s.tensors[0]].side
        cell = self.made.cells[n, side]
        source, name = self.made.sums[self.made.taken[n]], self.made.sums[cell]
        if cell in self.defined:
            raise PlanError("sums that come back to others")
        self.defined.add(cell)
        (exchange,) = (
            x
            for x in self.loops.statements
            if isinstance(x, Gather | AllToAll) and x.name == s.exchange
        )
        return self.assign(indent, name, self.exchanges.back(s, exchange, source, self.loops))

    # ---- attends

    def slice_ops(self, attends: Sequence[Group]) -> Iterator[Op]:
        """Names for the pieces that attends need."""
        for case in (case for group in attends for case in group.cases):
            q, kv = self.made.inputs[case.q], f"{self.made.inputs[case.kv]}[0]"
            q = q if self.forward else f"{q}[0]"
            for name, value in self.slices.definitions(case, q, kv):
                yield self.assign(4, name, value)

    def fresh(self, cell: Key) -> bool:
        """True for sums that a message takes along in the next step, all of them."""
        return cell[0].isdecimal() and cell[0] not in self.made.returned

    def starts(self, cell: Key) -> bool:
        """True if what is added next to these sums is the first."""
        return cell not in self.written and (self.fresh(cell) or cell not in self.defined)

    def zero(self, cell: Key, case: Case | None = None) -> str:
        """Sums that nothing has been added to."""
        if self.forward:
            return f"nothing({self.made.inputs[case.q] if case else 'q'})"
        if cell[1] == "kv":
            return f"zeros({self.made.inputs[case.kv] if case else '(k, v)'})"
        return f"zeros({self.made.inputs[case.q]}[0])" if case and case.q[0] != OWN else "zeros(q)"

    def attend(self, group: Group, run: Run, names: Names, indent: int) -> Op:
        """One call, or one per case of which a device has one."""
        on = Domain(run.steps, self.at)
        bases = [self.base(cell, group.cases[0]) for cell in group.cells]
        first = bases[0].startswith("nothing(")
        only = len(group.cases) == 1 and group.always
        calls = [self.call(c, group, first and only) for c in group.cases]
        targets = ", ".join(self.made.sums[cell] for cell in group.cells)
        nothing = ", ".join(bases)
        nothing = nothing if first else f"({nothing})"
        lines, reads = switched(group, calls, nothing, targets, names, self.loops, on, indent)
        self.written |= set(group.cells)
        self.defined |= set(group.cells)
        return self.op(lines, targets, reads)

    def base(self, cell: Key, case: Case) -> str:
        """What an attend adds to."""
        return self.zero(cell, case) if self.starts(cell) else self.made.sums[cell]

    def call(self, case: Case, group: Group, first: bool) -> tuple[str, list[str]]:
        """The name of the function and its arguments."""
        q, kv = self.made.inputs[case.q], self.made.inputs[case.kv]
        rows, cols, causal = self.slices.of(case)
        if first and rows is None:
            keys = f"*{kv}" if cols is None else f"*(x[:, :, {cols}] for x in {kv})"
            return "attend(", [q, keys, f"causal={causal}"]
        bases = [self.base(cell, case) for cell in group.cells]
        bases = [f"*{b}" if b.startswith("nothing(") else b for b in bases]
        more = [f"{k}={x}" for k, x in (("rows", rows), ("cols", cols)) if x]
        more += ["causal=True"] if causal else []
        return ("meet(" if self.forward else "meet_backward("), [*bases, q, kv, *more]

    # ---- assignments

    def assign(self, indent: int, name: str, value: str) -> Op:
        return self.op([f"{' ' * indent}{name} = {value}"], name, value)

    def op(self, lines: Sequence[str], targets: str, text: str) -> Op:
        return Op(tuple(lines), tuple(targets.split(", ")), text)
