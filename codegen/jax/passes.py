"""A pass as the body of a Python function: steps one after the other, equal ones as a loop."""

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np

from codegen.jax.attends import Attends
from codegen.jax.cases import Group
from codegen.jax.hops import Steps, sends_inputs
from codegen.jax.runs import Block, Op, Run
from codegen.lowered.conditions import Domain, both, times
from codegen.lowered.walk import Cell
from codegen.text import Names, numbered
from planner.errors import PlanError
from planner.loops.form import OWN, Exchange, Return, Send, Start, Statement

Active = Sequence[tuple[Statement, Steps]]  # statements, and their steps in a run


@dataclass
class Pass(Attends):
    """One pass on its way to text.

    `waiting`: steps whose inputs are sent in the next one. `cast`: results in the type of inputs.
    """

    waiting: set[int] = field(default_factory=set)
    cast: set[str] = field(default_factory=set)

    def blocks(self, runs: Sequence[Run]) -> list[Block]:
        """The lines of all runs, in order."""
        unrolled = {t - 1 for run in runs if run.kind == "unrolled" for t in run.steps}
        rolled = {t for run in runs if run.kind == "rolled" for t in run.steps}
        exchanging = (s.when for s in self.loops.statements if isinstance(s, Exchange))
        self.waiting = unrolled.difference(rolled, *(when.steps for when in exchanging))
        opening = Block(None, tuple(self.opening()))
        return [opening, *(self.block(run) for run in runs)]

    def opening(self) -> Iterator[Op]:
        """Names for what a device owns."""
        for side in ("kv",) if self.forward else ("kv", "q"):
            if name := self.made.inputs.get((side, OWN)):
                yield self.assign(name, self.own(side))

    def own(self, side: str) -> str:
        """Returns the arrays that a device owns, as text."""
        if side == "kv":
            return "k, v"
        return "q, dout, lse, delta" if self.stats else "q, dout, out, lse"

    @property
    def kept_names(self) -> list[str]:
        """The variables that a pass keeps for the other, or begins with, in one order."""
        if not self.forward:
            held = ["held_q", "held_out", "held_lse"] * ("q" in self.kept)
            return [*held, *["held_kv"] * ("kv" in self.kept)]
        names = [self.made.inputs[s.side, s.name] for s in self.kept.values()]
        if q := self.kept.get("q"):
            (cell,) = self.made.back([q.name])
            names[1:1] = self.made.sums[cell].split(", ")
        return names

    @property
    def results(self) -> list[str]:
        """The variables that are read after all steps."""
        if not self.forward:
            return ["dq", "dkv"]
        return ["out", *["lse"] * (not self.outputs_alone), *self.kept_names]

    def ending(self, saved: Sequence[str]) -> list[str]:
        """The last lines; `saved`: what the backward pass reads of what a device owns."""
        if not self.forward:
            dq = "dq" if "dq" in self.cast else "dq.astype(dout.dtype)"
            dkv = "dkv" if "dkv" in self.cast else "(x.astype(dout.dtype) for x in dkv)"
            return [f"    return {dq}, *{dkv}"]
        kept = ", ".join(self.kept_names)
        made = [f'    kept = checkpoint_name([{kept}], "attention_kept")'] * bool(kept)
        named = [x for x in self.results if x in ("out", "lse")]
        values = ", ".join(f'checkpoint_name({x}, "attention_{x}")' for x in named)
        made.append(f"    {', '.join(named)} = {values}")
        out = "out" if "out" in self.cast else "out.astype(q.dtype)"
        together = f"({', '.join([*saved, *['*kept'] * bool(kept)])})" if saved else "kept"
        return [*made, f"    return {out}, {together}"]

    def block(self, run: Run) -> Block:
        """The lines of a run; what a loop adds to is there before it."""
        inside = run.kind != "straight"
        names = self.names if inside else replace(self.names, at=run.steps[0])
        before = list(self.beginnings(run)) if inside else []
        groups = self.groups(run.steps)
        sliced, body, after = [*self.slice_ops(groups)], [*self.ops(run, names, groups)], list[Op]()
        while body and body[0].only == run.steps[0]:
            before.append(replace(body.pop(0), condition=""))
        while body and body[-1].only == run.steps[-1]:
            after.insert(0, replace(body.pop(), condition=""))
        return Block(run, tuple(body), (*before, *sliced), tuple(after))

    def beginnings(self, run: Run) -> Iterator[Op]:
        """Sums that a loop adds to and that nothing has been added to before."""
        cells = [
            cell
            for (s, _), cell in self.made.cells.items()
            if s in run.statements and (not isinstance(s, Return) or cell in self.walked.parted)
        ]
        for cell in dict.fromkeys(cells):
            within = self.loops.exchanges.get(cell[1]) in run.statements  # there they begin
            if cell in self.defined or within:
                continue
            if not self.in_use(self.made.sums[cell], run):
                yield self.assign(self.made.sums[cell], self.zero(cell))
            self.defined.add(cell)

    def in_use(self, name: str, run: Run) -> bool:
        """True if a run sends sums of this name that are there before it."""
        sent = {cell for s, cell in self.made.taken.items() if self.during(s, run)}
        return any(self.made.sums[cell] == name for cell in sent & self.defined)

    # ---- the lines of a step

    def ops(self, run: Run, names: Names, groups: Sequence[Group]) -> Iterator[Op]:
        """Sums leave; attends add; sums arrive; inputs go on, exchanges and their returns."""
        active = [(s, self.during(s, run)) for s in run.statements]
        attends = [(group, self.when(group, run)) for group in groups]
        added = {self.made.sums[cell] for group, _ in attends for cell in group.cells}
        late = dict[tuple[Cell, str], Steps]()
        self.started, self.written = {}, {}
        yield from self.readable(run, active, names)
        for s, steps in active:
            if isinstance(s, Send) and s.sums:
                yield from self.leave(s, run, steps, names, added, late)
        back = [(s, on) for s, on in active if isinstance(s, Return)]
        before = any(self.made.sums[self.made.taken[s]] in added for s, _ in back)
        if before:
            yield from _in_order([*self.returns(run, back, names)])
        yield from self.attended(run, attends, names)
        for (cell, text), steps in late.items():
            yield from self.at(run, steps, self.arrive(cell, text, steps))
        moves = [] if before else [*self.returns(run, back, names)]
        yield from _in_order([*moves, *self.moved(run, active, names)])

    def readable(self, run: Run, active: Active, names: Names) -> Iterator[Op]:
        """Inputs that come, and names that begin: these first, unless a step has both."""
        coming, starts = [*_in_order([*self.coming(run, names)])], list[Op]()
        for s, steps in active:
            if isinstance(s, Start):
                starts += self.at(run, steps, self.start(s, run))
        pairs = [(x.steps, y.steps) for x in starts for y in coming]
        apart = all(x and y and not {*x} & {*y} for x, y in pairs)
        yield from [*starts, *coming] if apart else [*coming, *starts]

    def attended(
        self, run: Run, attends: Sequence[tuple[Group, Steps]], names: Names
    ) -> Iterator[Op]:
        """Attends add to their sums."""
        for cell in dict.fromkeys(cell for group, _ in attends for cell in group.cells):
            yield from self.anew(cell, run)
        for group, steps in attends:
            lines = self.attend(group, steps, names, run.kind != "unrolled")
            yield from self.at(run, steps, lines)

    def moved(self, run: Run, active: Active, names: Names) -> Iterator[Op]:
        """Inputs go on, unless the next step is to send them, and are exchanged."""
        for s, steps in active:
            if sends_inputs(s):
                now = tuple(t for t in steps if t not in self.waiting)
                if now:
                    sent = self.forward_input(s, self.once(run, now, names))
                    yield from self.at(run, now, sent)
            elif isinstance(s, Exchange):
                yield from self.at(run, steps, self.exchange(s, names))

    def leave(
        self,
        s: Send,
        run: Run,
        steps: Steps,
        names: Names,
        added: Set[str],
        late: dict[tuple[Cell, str], Steps],
    ) -> Iterator[Op]:
        """Send sums; `late`: what arrives, by name or as a call where attends add to neither."""
        cell, taken = self.made.cells[s, s.tensors[0]], self.made.taken[s]
        if taken not in self.defined and run.kind == "straight":
            return  # what the plan sends stays with its owner here
        into, source = self.made.sums[cell], self.made.sums[taken]
        value = f"({source})" if ", " in source else source
        text = self.hops.call(s, value, self.once(run, steps, names))
        if {into, source} & added:
            busy = {name for (_, name), on in late.items() if {*on} & {*steps}}
            arriving = ", ".join(f"arriving_{word}" for word in into.split(", "))
            name = next(x for x in numbered(arriving) if x not in busy)
            yield from self.at(run, steps, [self.assign(name, text)])
            text = name
        late[cell, text] = tuple(sorted({*late.get((cell, text), ()), *steps}))

    def anew(self, cell: Cell, run: Run) -> Iterator[Op]:
        """Sums that stay begin with nothing where an exchange of a run brings what they are for."""
        if self.loops.exchanges.get(cell[1]) in run.statements and not self.fresh(cell):
            first, _ = self.walked.lasting(cell)
            begun = tuple(t for t in run.steps if t in first)
            yield from self.at(run, begun, [self.assign(self.made.sums[cell], self.zero(cell))])
            self.defined.add(cell)

    def coming(self, run: Run, names: Names) -> Iterator[Op]:
        """Inputs that the step before sends: in a loop that Python unrolls they are sent here."""
        before = replace(names, first=names.first - 1)  # so that this step says that one's number
        for s in self.loops.statements:
            sending = tuple(t - 1 for t in run.steps if t - 1 in self.waiting and s.when.on(t - 1))
            if sends_inputs(s) and sending:
                sent = self.forward_input(s, self.once(run, sending, before))
                yield from self.at(run, tuple(t + 1 for t in sending), sent)

    def returns(self, run: Run, back: Sequence[tuple[Return, Steps]], names: Names) -> Iterator[Op]:
        """Let sums go back over exchanges."""
        for s, steps in back:
            yield from self.at(run, steps, self.bring_back(s, self.once(run, steps, names)))

    def during(self, s: Statement, run: Run) -> Steps:
        """The steps of a run in which a statement runs."""
        return tuple(t for t in run.steps if s.when.on(t))

    def when(self, group: Group, run: Run) -> Steps:
        """The steps of a run in which some case of a group runs on some rank."""
        active = np.logical_or.reduce([case.active.any(axis=1) for case in group.cases])
        return tuple(t for t, on in zip(run.steps, active, strict=True) if on)

    def at(self, run: Run, steps: Steps, ops: Iterable[Op]) -> Iterator[Op]:
        """Lines that run in some steps only of a loop that Python unrolls."""
        if run.kind != "unrolled":
            yield from ops
            return
        condition = both(times(steps, Domain(self.loops, run.steps, self.names)))
        yield from (replace(op, condition=condition, steps=steps) for op in ops)

    def once(self, run: Run, steps: Steps, names: Names) -> Names:
        """The names for a line of some steps: with a number for the only one of several."""
        return replace(names, at=steps[0]) if run.kind == "unrolled" and len(steps) == 1 else names

    def start(self, s: Start, run: Run) -> Iterator[Op]:
        """A name for a value from here on, or from the next step on if that is no loop's."""
        name, source = (self.made.inputs[s.side, v] for v in (s.name, s.part.value))
        if s.part.pieces or s.part.heads:
            raise PlanError("some of the pieces that came in a message travel on")
        if run.kind == "straight":
            self.started[s.side, s.name] = source
        if name != source:
            yield self.assign(name, source)

    def arrive(self, cell: Cell, text: str, steps: Steps) -> Iterator[Op]:
        """Add what arrives to sums, or let it be the sums."""
        name, first = self.made.sums[cell], self.starts(cell, steps)
        self.write((cell,), steps)
        if first:
            yield self.assign(name, text)
        elif ", " in name:
            more = text if ", " in text and "(" not in text else f"*{text}"
            yield self.assign(name, f"merge({name}, {more})")
        elif cell[0] == "DQ":
            yield self.assign(name, f"{name} + {text}")
        else:
            yield self.assign(name, f"jax.tree.map(jnp.add, {name}, {text})")

    def forward_input(self, s: Send, names: Names) -> Iterator[Op]:
        """Send inputs; what arrives has its name from the next step on."""
        if len(s.parts) > 1 or s.parts[0].pieces or s.parts[0].heads:
            raise PlanError("a message carries some of the pieces that a rank has")
        source, name = self.input(s.side, s.parts[0].value), self.made.inputs[s.side, s.name]
        yield self.assign(name, self.hops.call(s, source, names))

    def exchange(self, s: Exchange, names: Names) -> Iterator[Op]:
        """Exchange inputs along an axis of the mesh."""
        side, single = s.side, self.forward and s.side == "q"
        source, name = self.input(side, s.part.value), self.made.inputs[side, s.name]
        if s.part.value == OWN and not single:
            source = f"({self.own(side)})"
        if s.tensors == ("DOUT",) and "q" in self.kept:
            dout = self.over(s).there("dout", True, names)
            yield self.assign(name, f"held_q, {dout}, held_out, held_lse")
            return
        yield self.assign(name, self.over(s).there(source, single, names))

    def bring_back(self, s: Return, names: Names) -> Iterator[Op]:
        """Let sums go back over an exchange."""
        cell = self.made.cells[s, s.tensors[0]]
        source = self.made.sums[self.made.taken[s]]
        exchange = self.loops.exchanges.get(s.name, self.kept.get("kv"))
        if exchange is None:
            raise PlanError("partial results are exchanged where no inputs were")
        over = self.over(exchange)
        came = over.back(s, source, self.outputs_alone)
        if over.whole:
            self.cast.add(self.made.sums[cell].split(", ")[0])
        yield self.put(cell, came, over.shares.after(1 + s.lag), names)


def _in_order(ops: list[Op]) -> Iterator[Op]:
    """Lines of one step: what they read is read before another of its name is assigned."""
    while ops:
        first = next((op for op in ops if not _read_by_others(op, ops)), None)
        if first is None:
            raise PlanError("blocks travel on in the steps in which others take their place")
        ops.remove(first)
        yield first


def _read_by_others(op: Op, ops: Sequence[Op]) -> bool:
    """True if what a line assigns to is read by another one in the same step."""
    apart = [x for x in ops if x is op or (x.steps and op.steps and not {*x.steps} & {*op.steps})]
    return any(set(op.targets) & other.reads for other in ops if other not in apart)
