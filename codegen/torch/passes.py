"""Sections of a loop form as the text of `forward` or `backward`.

A section of one step is straight code, a longer one is a loop over `step`; steps at its end that
only take sums on follow it. In a step messages start first, then the rank attends, then it waits,
and adds what came. A printed pass does exactly what the form says, or PlanError says why it cannot.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from math import gcd

from codegen.lowered.conditions import Domain, both, conditions
from codegen.lowered.sums import Cell
from codegen.text import Names
from codegen.torch.attends import Attending
from codegen.torch.exchanges import Exchanges
from codegen.torch.frames import Frame, frames
from codegen.torch.holdings import zeros
from codegen.torch.messages import CARRIED, Messages
from codegen.torch.state import indented
from codegen.torch.tiles import Meeting, unit_of
from codegen.torch.transfers import Transfer, transfers
from codegen.torch.variables import untouched
from planner.errors import PlanError
from planner.ir import ACCUMULATORS
from planner.loops.form import OWN, Attend, Exchange, Return, Send, Start

FORWARD = '"""Output and log-sum-exp of the local queries."""'
BACKWARD = '"""Gradients of the local queries, keys and values."""'


class Pass(Attending, Exchanges, Messages):
    """The text of one pass."""

    def function(self) -> list[str]:
        """The whole function."""
        for frame in frames(self.loops):
            self.frame(frame)
        saved = "*saved" if self.have.kept else "q, k, v, out, lse, group"
        head = f"backward(dout, {saved})"
        sinks = ", sinks" * self.plan.workload.sinks
        head = head if self.backward else f"forward(q, k, v{sinks}, group)"
        return [
            f"def {head}:",
            f"    {BACKWARD if self.backward else FORWARD}",
            *self.opening(),
            *self.lines,
            *self.ending(),
        ]

    @cached_property
    def unit(self) -> int:
        """The pieces of which all slices are multiples."""
        attends = [s for s in self.loops.statements if isinstance(s, Attend)]
        return unit_of(attends, self.walked.pieces)

    # -- what stands before and behind

    def opening(self) -> Iterator[str]:
        """Ranks, groups and sizes, as far as they are used."""
        used, own = "\n".join(self.lines), "dout" if self.have.kept else "q"
        length = f"{own}.shape[2] * RANKS"
        order = self.order("seq" if ", seq)" in used else length)
        if self.have.kept:  # instead of what the rank owns
            yield "    *_, q, k, v, out, lse, group = saved"
        if len(self.axes) > 1:
            named = [g if g in used else "_" for g in (f"{a}_group" for a in self.axes)]
            yield f"    {', '.join(named)} = groups_of(group)"
        used += "".join([*(self.neighbours or ()), *order])
        places = ["rank = group.rank()"] if "rank" in used or len(self.axes) > 1 else []
        if "size" in self.uses:
            k, n = self.unit, self.walked.pieces["q", OWN]
            common = gcd(k, n)
            times, by = f" * {k // common}" * (k > common), f" // {n // common}" * (n > common)
            places.append(f"size = {own}.shape[2]{times}{by}")
        if ", seq)" in used:
            places.append(f"seq = {length}")
        if places:
            left, right = zip(*(p.split(" = ") for p in places), strict=True)
            yield f"    {', '.join(left)} = {', '.join(right)}"
        if len(self.axes) == 2:
            yield f"    outer, inner = divmod(rank, {self.sizes[1]})"
        elif len(self.axes) > 2:
            raise PlanError("a mesh of more than two axes")
        yield from (f"    {line}" for line in order)
        if "stats" in self.have.used:
            yield "    delta = (dout * out.to(wide(q))).sum(-1, keepdim=True)"
        if self.neighbours:
            yield f"    after, before = {', '.join(self.neighbours)}"

    def ending(self) -> Iterator[str]:
        """The results in the model's types."""
        for tensor in ACCUMULATORS[self.plan.pass_]:
            if (tensor, OWN) not in self.have.names.cells:
                raise PlanError(f"nothing is ever added to {tensor}, of which nobody sees anything")
        if not self.backward:
            if self.plan.workload.sinks:
                yield "    out, lse = sunk(out, lse, sinks)"
            yield f"    return out.to(q.dtype), lse{', *kept' if self.keep.names else ''}"
            return
        names = self.have.names.cells
        results = [
            f"{names['DQ', OWN]}.to(q.dtype)",
            f"*(x.to(k.dtype) for x in {names['DKV', OWN]})",
        ]
        yield f"    return {', '.join(results)}"

    # -- frames

    def frame(self, frame: Frame) -> None:
        """A loop, or a step of its own."""
        domain = Domain(self.loops, frame.steps)
        names = Names(
            self.axes,
            frame.first,
            at=None if frame.loop else frame.first,
            sizes=dict(zip(self.loops.mesh, self.sizes, strict=True)),
        )
        starts = [
            s
            for s in self.loops.statements
            if isinstance(s, Start) and any(map(s.when.on, domain.steps))
        ]
        inputs = self.have.names.inputs
        first = [s for s in starts if untouched(self.loops, inputs, s, frame.first)]
        begun = dict[str, list[str]]()
        for name, value in (line.split(" = ") for s in first for line in self.start(s)):
            begun.setdefault(value, []).append(name)
        self.paste([" = ".join([*names, value]) for value, names in begun.items()])
        self.step(frame, domain, names, [s for s in starts if s not in first])

    def step(self, frame: Frame, domain: Domain, names: Names, starts: Sequence[Start]) -> None:
        """The steps of a frame: values that begin to travel, messages, attends, arrivals."""
        meetings = self.meetings(domain, names)
        moves = list(transfers(self.loops, self.walked, domain, names))
        self.last(moves)
        anew = {
            cell
            for m in meetings
            for tensor in ACCUMULATORS[self.plan.pass_]
            if self.have.anew(cell := self.cell(m, tensor))
        }
        exchanged = self.exchanges(frame, bool(meetings))
        begun = [*self.beginning(frame, meetings, moves)]
        self.begin([cell for cell in begun if frame.loop or cell not in anew])
        if frame.loop:
            self.write(f"for step in range({names.count(len(domain.steps))}):")
            self.margin += 4
        for s in starts:
            when, lines = both(conditions(s.when, domain, names)), self.start(s)
            self.paste(indented(f"if {when}:", lines) if when and lines else lines)
        self.peers_said = None
        handles = [(move, self.send(move)) for move in moves]
        started = [handle for _, handle in handles if handle]
        if len(set(started)) < len(started):
            raise PlanError("several messages of one name are under way at once")
        self.stay(domain)
        self.begin(sorted(anew))
        relayed = [x for x in handles if x[0].into and self.walked.relayed(x[0].into)]
        late, cells = list[str](), set[Cell]()
        for meeting in meetings:
            if not self.backward:
                self.paste(self.attend(meeting))
                continue
            lines, more = self.attend_back(meeting)
            if late:  # before the names of their parts are taken again
                self.settle(relayed, late, cells)
            self.paste(lines)
            late += more
            cells |= {self.cell(meeting, x) for x in ("DQ", "DKV")}
        self.settle(relayed, late, {m.into for m, _ in relayed if m.into})
        for move, handle in handles:
            if move.into and not self.walked.relayed(move.into):
                self.arrive(move, handle)
        for move, handle in handles:
            if not move.into:
                self.receive(move, handle)
        self.paste(exchanged)
        if frame.loop:
            self.margin -= 4

    def settle(
        self, relayed: list[tuple[Transfer, str]], late: list[str], cells: set[Cell]
    ) -> None:
        """Sums for some cells that travel on come, and are added to."""
        came = set[Cell]()
        for move, handle in [x for x in relayed if x[0].into in cells]:
            assert move.into
            self.take_over(move, handle, move.into in came)
            came.add(move.into)
            relayed.remove((move, handle))
        self.paste(late)
        late.clear()

    def begin(self, cells: Sequence[Cell]) -> None:
        """Sums of nothing, those of queries and keys together where both begin."""
        if {c[0] for c in cells} == {"DQ", "DKV"} and len(cells) == 2:
            (dq,), (dkv,) = ([c for c in cells if c[0] == x] for x in ("DQ", "DKV"))
            like = self.have.like("q", self.have.shape(dq))
            keys = self.have.like("kv", self.have.shape(dkv)).removeprefix("[").removesuffix("]")
            keys = keys if keys == "k, v" else f"*{keys}"
            names = self.have.names.cells
            self.write(f"{names[dq]}, *{names[dkv]} = ({zeros(f'[{like}, {keys}]')})")
            return
        lines = (self.have.blank(cell, "kv" if cell[0] == "DKV" else "q") for cell in cells)
        self.paste([*dict.fromkeys(lines)])

    def stay(self, domain: Domain) -> None:
        """Sums that some ranks own and do not send are theirs; others get their own later."""
        for cell, t in self.walked.kept.items():
            if t in domain.steps:
                own = cell[0], OWN
                if self.walked.accumulates(own) or cell[0] == "OUT":
                    raise PlanError("sums that stay with their owners are added to")
                names = self.have.names.cells
                line = f"{names[own]} = {names[cell]}"
                if names[own] == names[cell]:
                    continue
                if len(domain.steps) == 1:
                    self.write(line)
                else:
                    self.paste([f"if step == {t - domain.steps[0]}:", f"    {line}"])

    def beginning(
        self, frame: Frame, meetings: Sequence[Meeting], moves: Sequence[Transfer]
    ) -> Iterator[Cell]:
        """The sums that begin with nothing in these steps."""
        for cell, first in self.walked.first.items():
            if not frame.first <= first <= frame.last:
                continue
            begun = cell[0] == "OUT" and any(
                self.begins(m, cell) for m in meetings if self.cell(m, "OUT") == cell
            )
            comes = self.walked.relayed(cell) and self.walked.arrivals[cell][0] == first
            placeholder = cell in self.walked.guarded or (frame.loop and cell in self.walked.sent)
            if (self.walked.accumulates(cell) and not (begun or comes)) or (
                placeholder and not self.walked.accumulates(cell)
            ):
                self.check_free(cell, moves, frame)
                yield cell

    def check_free(self, cell: Cell, moves: Sequence[Transfer], frame: Frame) -> None:
        """Raise PlanError if sums begin under the name of others that are about to leave."""
        names = self.have.names.cells
        others = {m.source for m in moves if m.source and m.source != cell}
        older = [x for x in others if self.walked.first[x] < frame.first]
        if any(names[other] == names[cell] for other in older):
            raise PlanError(f"sums for {cell[1]} begin while others of their name leave")

    def exchanges(self, frame: Frame, busy: bool) -> list[str]:
        """All with all: what everybody has, and sums back; returns the lines after attends.

        Beside attends exchanges are started before these, and waited for after them.
        """
        late, before = list[str](), len(self.lines)
        for s in self.loops.statements:
            if isinstance(s, Exchange | Return) and any(s.when.on(t) for t in frame.steps):
                if frame.loop:
                    raise PlanError("an exchange of all with all in a loop")
                if isinstance(s, Return):
                    if self.keep.names and not self.backward:
                        late.append(self.kept_line())
                    started, lines = self.returned(s, self.walked.into[s][frame.first], busy)
                    kind = "returning"
                else:
                    started, name, came = self.brought(s, busy)
                    lines, kind = [f"{name} = {came}"], "arriving"
                if started:
                    handle = f"{kind}_{CARRIED[s.tensors[0]]}"
                    if any(line.strip().startswith(f"{handle} = ") for line in self.lines[before:]):
                        raise PlanError("several exchanges of one kind are under way at once")
                    self.write(f"{handle} = {started}")
                    lines = [line.replace("{}", f"{handle}.wait()") for line in lines]
                late += lines
        return late

    def kept_line(self) -> str:
        """The tensors that the backward pass takes over."""
        assert self.keep.q
        assert self.keep.kv
        names = self.have.names.inputs
        queries, kv = names["q", self.keep.q.name], names["kv", self.keep.kv.name]
        results = "out.to(q.dtype), lse"
        if self.plan.workload.sinks:
            axis, axes = self.keep.q.axis, len(self.loops.mesh)
            place = "group.rank()" if axes == 1 else self.axes[axis]
            results = f"*sunk({results}, sinks.chunk({self.sizes[axis]})[{place}])"
        return f"kept = [*{queries}, *{kv}, {results}]"

    def start(self, s: Start) -> list[str]:
        """A value begins to travel."""
        target = self.have.names.inputs[s.side, s.name]
        source = self.have.part(s.tensors, s.part)
        for x in self.loops.statements:
            if isinstance(x, Send) and x.name == s.part.value and self.late(x):
                source = f"{self.handles[x]}.wait()"
        return [f"{target} = {source}"] if target != source else []

    def meetings(self, domain: Domain, names: Names) -> list[Meeting]:
        """The rectangles of the frame, by the values that meet."""
        groups: dict[tuple[object, ...], list[Attend]] = {}
        for s in self.loops.statements:
            if isinstance(s, Attend) and any(s.when.on(t) for t in domain.steps):
                cells = (c for to in self.walked.targets[s].values() for c in to.values())
                key = s.q[0].value, s.kv[0].value, frozenset(cells)
                groups.setdefault(key, []).append(s)
        pieces = self.walked.pieces
        return [
            Meeting(tuple(s), domain, names, (pieces["q", q], pieces["kv", kv]), self.unit)
            for s in groups.values()
            for q, kv in [(s[0].q[0].value, s[0].kv[0].value)]
        ]
