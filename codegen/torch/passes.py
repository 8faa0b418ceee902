"""Sections of a loop form as the text of `forward` or `backward`.

A section of one step is straight code, a longer one is a loop over `step`; steps at its end that
only take sums on follow it. In a step messages start first, then the rank attends, then it waits,
and adds what came. A printed pass does exactly what the form says, or PlanError says why it cannot.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from math import gcd

from codegen.lowered.conditions import Domain, both, conditions, times
from codegen.reflow import WIDTH
from codegen.text import Names, numbered
from codegen.torch.attends import Attending
from codegen.torch.exchanges import Exchanges
from codegen.torch.folding import joined, looped
from codegen.torch.frames import Frame
from codegen.torch.state import indented, tupled
from codegen.torch.tiles import Meeting, unit_of
from codegen.torch.transfers import transfers
from codegen.torch.variables import CARRIED, late, untouched
from planner.errors import PlanError
from planner.ir import ACCUMULATORS
from planner.loops.form import OWN, Attend, Exchange, Return, Send, Start, Statement

FORWARD = '"""Output and log-sum-exp of the local queries."""'
BACKWARD = '"""Gradients of the local queries, keys and values."""'


class Pass(Attending, Exchanges):
    """The text of one pass."""

    def function(self) -> list[str]:
        """The whole function."""
        for frame in self.frames:
            self.frame(frame)
        ending = [*self.ending()]  # it may take the last line
        saved = "*saved" if self.have.kept else "q, k, v, out, lse, group"
        head = f"backward(dout, {saved})"
        sinks = ", sinks" * self.plan.workload.sinks
        head = head if self.backward else f"forward(q, k, v{sinks}, group)"
        return [
            f"def {head}:",
            f"    {BACKWARD if self.backward else FORWARD}",
            *self.opening(),
            *looped(self.lines),
            *ending,
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
        order = self.order()
        if self.have.kept:  # instead of what the rank owns
            yield "    *_, q, k, v, out, lse, group = saved"
        if len(self.axes) > 1:
            named = [g if g in used else "_" for g in (f"{a}_group" for a in self.axes)]
            yield f"    {', '.join([*named, *self.axes])} = places_of(group)"
        used += "".join([*(self.neighbours or ()), *order])
        places = ["rank = group.rank()"] if re.search(r"(?<!\.)\brank\b", used) else []
        if "size" in self.uses:
            k, n = self.unit, self.walked.pieces["q", OWN]
            common = gcd(k, n)
            times, by = f" * {k // common}" * (k > common), f" // {n // common}" * (n > common)
            places.append(f"size = {own}.shape[2]{times}{by}")
        if re.search(r"\bseq\b", used) or order:
            places.append(f"seq = {length}")
        if places:
            left, right = zip(*(p.split(" = ") for p in places), strict=True)
            yield f"    {', '.join(left)} = {', '.join(right)}"
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
        if self.backward:
            sums = (f"*{self.have.names.cells[t, OWN]}" for t in ACCUMULATORS[self.plan.pass_])
            yield f"    return [x.to(q.dtype) for x in ({', '.join(sums)})]"
            return
        results, name = self.have.cast(("OUT", OWN)), self.have.names.cells["OUT", OWN]
        if self.plan.workload.sinks:
            results = f"[*sunk(*{results}, sinks)]"
        elif self.walked.complete(("OUT", OWN)) and self.lines[-1].startswith(
            f"    {name} = wait("
        ):
            results = self.lines.pop().partition(" = ")[2]  # it comes in its type
            results = f"[*{results}]" if self.keep.names else results
        yield f"    return {results[:-1]}, *kept]" if self.keep.names else f"    return {results}"

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
        starts = [s for s in self.running(frame) if isinstance(s, Start)]
        inputs = self.have.names.inputs
        first = [s for s in starts if untouched(self.loops, inputs, s, frame.first)]
        begun = dict[str, list[str]]()
        for name, value in (line.split(" = ") for s in first for line in self.start(s)):
            begun.setdefault(value, []).append(name)
        before = [" = ".join([*names, value]) for value, names in begun.items()]
        self.step(frame, domain, names, [s for s in starts if s not in first], before)

    def running(self, frame: Frame) -> list[Statement]:
        """The statements that run in some steps of a frame."""
        return [s for s in self.loops.statements if any(map(s.when.on, frame.steps))]

    def step(
        self,
        frame: Frame,
        domain: Domain,
        names: Names,
        starts: Sequence[Start],
        before: list[str],
    ) -> None:
        """The steps of a frame: values that begin to travel, messages, attends, arrivals."""
        meetings = self.meetings(domain, names)
        moves = list(transfers(self.loops, self.walked, domain, names))
        before += self.expected(moves)
        begun = self.begin(frame, domain, names, before)
        self.paste(tupled(before))
        if frame.loop:
            self.write(f"for step in range({names.count(len(domain.steps))}):")
            self.margin += 4
        for s in starts:
            when, lines = both(conditions(s.when, domain, names)), self.start(s)
            self.paste(indented(f"if {when}:", lines) if when and lines else lines)
        self.peers_said = None
        exchanged = any(isinstance(s, Exchange | Return) for s in self.running(frame))
        alone = len(moves) == 1 and not (meetings or begun or exchanged)
        for move in moves:
            self.send(move, alone)
        last = self.exchanges(frame, bool(meetings), begun)
        self.paste(tupled(begun))
        self.paste(joined([line for meeting in meetings for line in self.attend(meeting)]))
        for move in moves:
            if move.into:
                self.arrive(move)
        for move in moves:
            if not move.into:
                self.receive(move)
        self.paste(last)
        if frame.loop:
            self.margin -= 4

    def begin(self, frame: Frame, domain: Domain, names: Names, before: list[str]) -> list[str]:
        """The lines with which sums begin anew in the steps of a frame, after older ones left.

        What is there before a loop, as sums that begin once and stay, goes to the lines `before`.
        """
        lines, lasting = dict[str, str](), dict[str, set[int]]()
        for cell, name in self.have.names.cells.items():
            lasting.setdefault(name, set()).update(self.walked.lasting(cell)[1] & {*frame.steps})
        for cell, name in self.have.names.cells.items():
            begun = sorted(self.walked.lasting(cell)[0] & {*frame.steps})
            if not begun or self.assigned(cell, frame.steps):
                continue
            blank, once = self.have.blank(cell), len(begun) == 1 and frame.loop
            once = once and begun[0] not in self.walked.taken.get(cell, ())
            once |= any((c[0], OWN) == cell and t in begun for c, t in self.walked.kept.items())
            if once or (frame.loop and name not in self.defined):
                before.append(blank)
            self.defined.add(name)
            if once:
                continue
            when = both(times(begun, domain, names)) if frame.loop and lasting[name] else ""
            blank = f"if {when}:\n    {blank}" if when else blank
            if lines.setdefault(name, blank) != blank:
                raise PlanError("sums of several values begin anew under one name")
        return [*lines.values()]

    def exchanges(self, frame: Frame, busy: bool, begun: Sequence[str]) -> list[str]:
        """All with all: what everybody has, and sums back; returns the lines after attends.

        Beside attends exchanges are started before these, and waited for after them; also where
        what they take has another value by then.
        """
        made = list[tuple[str, str, str]]()
        for s in self.running(frame):
            if not isinstance(s, Exchange | Return):
                continue
            if frame.loop:
                raise PlanError("an exchange of all with all in a loop")
            if isinstance(s, Exchange):
                started, name, came = self.exchange(s)
                made.append((f"arriving_{CARRIED[s.tensors[0]]}", started, f"{name} = {came}"))
                continue
            started, line = self.sum_exchange(s, frame.first)
            made.append((f"returning_{CARRIED[s.tensors[0]]}", started, line))
            if self.keep.names and not self.backward:
                self.write(self.kept_line())
        used, lines = {*self.have.names.handles.values()}, [*begun]
        for _, started, line in made:
            names = (x.split(" = ")[0].strip("(,)") for x in lines if " = " in x)
            busy |= any(re.search(rf"\b{name}\b", started) for name in names)
            lines.append(line)
        after, room = list[str](), WIDTH - self.margin
        for base, started, line in made:
            handle = next(name for name in numbered(base) if name not in used)
            used.add(handle)
            whole = shortened(line.replace("{}", started), room)
            if busy or len(whole[-1]) > room:
                begin = shortened(f"{handle} = {started}", room)
                whole = shortened(line.replace("{}", handle), room)
                self.paste(begin * busy)
                after += begin * (not busy)
            after += whole
        return after

    def kept_line(self) -> str:
        """The tensors that the backward pass takes over."""
        assert self.keep.q
        assert self.keep.kv
        names = self.have.names.inputs
        queries, kv = names["q", self.keep.q.name], names["kv", self.keep.kv.name]
        (results,) = (f"*{x}" for c, x in self.have.names.cells.items() if c[1] == self.keep.q.name)
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
            if isinstance(x, Send) and x.name == s.part.value and late(self.loops, x):
                source = f"wait({self.have.names.handles[x]})"
        self.defined.add(target)
        return [f"{target} = {source}"] if target != source else []

    def meetings(self, domain: Domain, names: Names) -> list[Meeting]:
        """The rectangles of the frame, by the values that meet."""
        groups: dict[tuple[object, ...], list[Attend]] = {}
        for s in self.loops.statements:
            if isinstance(s, Attend) and any(s.when.on(t) for t in domain.steps):
                cells = (c for to in self.walked.targets[s].values() for c in to.values())
                key = s.q[0].value, s.kv[0].value, frozenset(cells)
                groups.setdefault(key, []).append(s)
        return [Meeting(tuple(s), domain, names, self.unit) for s in groups.values()]


def shortened(line: str, room: int) -> list[str]:
    """A line that is too long as two, where one of its lists gets a name."""
    cut = re.fullmatch(r"(.*?[(*])(\[x.*? for x in (?:\w+|\([\w, ]+\))\])(, .*)", line)
    return [f"part = {cut[2]}", f"{cut[1]}part{cut[3]}"] if cut and len(line) > room else [line]
