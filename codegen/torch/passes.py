"""Sections of a loop form as the text of `forward` or `backward`.

A section of one step is straight code, a longer one is a loop over `step`; steps at its end that
only take sums on follow it. In a step messages start first, then the rank attends, then it waits,
and adds what came. A printed pass does exactly what the form says, or PlanError says why it cannot.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from math import gcd

from codegen.lowered.conditions import both, conditions, times
from codegen.lowered.variables import inputs_read
from codegen.lowered.walk import Cell
from codegen.reflow import WIDTH
from codegen.torch.attends import Attending
from codegen.torch.exchanges import Exchanges
from codegen.torch.frames import Frame
from codegen.torch.state import Lines, joined, tupled
from codegen.torch.tiles import Meeting
from codegen.torch.transfers import Transfer, transfers
from codegen.torch.variables import late, untouched
from planner.errors import PlanError
from planner.ir import ACCUMULATORS
from planner.loops.form import OWN, Exchange, Return, Send, Start

FORWARD = '"""Output and log-sum-exp of the local queries."""'
RANK = r"(?<!\.)\brank\b"
WORD = re.compile(r"\w+")
READ = re.compile(r"(?<!\.)\b[a-z]\w*")
SIZES = "rank", "size", "seq"  # of which one line tells
INPUTS, CALL = "q: Tensor, k: Tensor, v: Tensor", "name: str, about: str, wrong: str, seq: int"
FORWARD_HEADS = [
    ["def forward(", f"    {INPUTS}{sinks}, {CALL}", ") -> list[Tensor]:"]
    for sinks in ("", ", sinks: Tensor")
]
BACKWARD_HEAD = ["def backward(dout: Tensor, saved: list[Tensor], name: str) -> list[Tensor]:"]
AGREE = "    agree(group_named(name), q, k, about, wrong, seq)"
BACKWARD = '"""Gradients of the local queries, keys and values."""'


class Pass(Attending, Exchanges):
    """The text of one pass."""

    def function(self, direct: bool) -> list[str]:
        """The whole function; `direct`: no program attends beside exchanges."""
        self.direct = direct
        for frame in self.frames:
            self.frame(frame)
        ending = [*self.ending()]  # it may take the last line
        head = BACKWARD_HEAD if self.backward else FORWARD_HEADS[self.plan.workload.sinks]
        return [
            f'@operator("attention{"_backward" * self.backward}")',
            "@no_type_check",
            *head,
            f"    {BACKWARD if self.backward else FORWARD}",
            *[AGREE] * (not self.backward),
            *self.opening(ending),
            *self.lines,
            *ending,
        ]

    # -- what stands before and behind

    def opening(self, ending: list[str]) -> Iterator[str]:
        """Takes what was kept for it, and ranks, groups and sizes that lines read."""
        sinks, kept = self.plan.workload.sinks, self.have.kept
        if self.backward:  # what was kept, instead of what the rank owns
            before = "*_, " * kept
            yield f"    {before}q, k, v, {'_, ' * (sinks and not before)}out, lse = saved"
        if self.backward and sinks:
            yield "    slope = sink_gradient(dout, *saved[3:6])"
        if len(self.axes) == 1 and not self.neighbours:
            self.inline_rank()
        read, made = {*READ.findall("\n".join([*self.lines, *ending]))}, list[tuple[str, str]]()
        for names, value in reversed([*self.given("dout" if kept else "q")]):
            if read & {*names.split(", ")}:
                names = ", ".join(x if x in read else "_" for x in names.split(", "))
                if "group" not in read:
                    value = value.replace("(group)", "(group_named(name))")
                made.append((names, value))
                read |= {*READ.findall(value)}
        for _, lines in groupby(reversed(made), lambda line: line[0] in SIZES or line):
            yield "    " + " = ".join(map(", ".join, zip(*lines, strict=True)))

    def given(self, own: str) -> Iterator[tuple[str, str]]:
        """Yields names and values that a pass may begin with, in an order that they can have."""
        yield "group", "group_named(name)"
        if several := len(self.axes) > 1:
            yield ", ".join((*(f"{a}_group" for a in self.axes), *self.axes)), "places_of(group)"
        yield "rank", "outer * INNER + inner" if several else "group.rank()"
        k, n = self.unit, self.walked.pieces["q", OWN]
        common = gcd(k, n)
        times, by = f" * {k // common}" * (k > common), f" // {n // common}" * (n > common)
        yield "size", f"{own}.shape[2]{times}{by}"
        yield "seq", f"{own}.shape[2] * RANKS"
        yield from self.order()
        yield "delta", "(dout * out.to(wide(q))).sum(-1, keepdim=True)"
        yield "after, before", ", ".join(self.neighbours or ())

    def inline_rank(self) -> None:
        """Asks for the rank where it is read, if that is one place."""
        read = [n for n, line in enumerate(self.lines) for _ in re.findall(RANK, line)]
        if len(read) == 1:
            self.lines[read[0]] = re.sub(RANK, "group.rank()", self.lines[read[0]])

    def ending(self) -> Iterator[str]:
        """The results in the model's types."""
        for tensor in ACCUMULATORS[self.plan.pass_]:
            if (tensor, OWN) not in self.have.cells:
                raise PlanError(f"the mask leaves nothing to compute of {tensor}")
        if self.backward:
            sums = (f"*{self.have.cells[t, OWN]}" for t in ACCUMULATORS[self.plan.pass_])
            slopes = f"x.to(q.dtype) for x in ({', '.join(sums)})"
            slopes = f"*({slopes}), slope" if self.plan.workload.sinks else slopes
            yield f"    return [{slopes}]"
            return
        results, name = self.have.cast(("OUT", OWN)).text, self.have.cells["OUT", OWN]
        if self.plan.workload.sinks:
            yield f"    {name} = sunk(*{name}, sinks)"
        elif self.walked.complete(("OUT", OWN)) and re.match(
            rf"    {name} = \[(wait|swap)\(", self.lines[-1]
        ):
            results = self.lines.pop().partition(" = ")[2]  # it comes in its type
            results = f"[*({results[1:-1]})]" if self.keep else results
        yield f"    return {results[:-1]}, *kept]" if self.keep else f"    return {results}"

    # -- frames

    def frame(self, frame: Frame) -> None:
        """A loop, or a step of its own."""
        starts = [s for s in frame.statements if isinstance(s, Start)]
        first = [s for s in starts if self.before_loop(s, frame.steps[0])]
        begun = dict[str, list[str]]()
        for name, value in (line.split(" = ") for s in first for line in self.start(s)):
            begun.setdefault(value, []).append(name)
        before = [" = ".join([*names, value]) for value, names in begun.items()]
        self.step(frame, [s for s in starts if s not in first], before)

    def before_loop(self, s: Start, first: int) -> bool:
        """True if a value may begin before step `first`: nobody reads another in its variable."""
        name = self.have.inputs[s.side, s.name]
        others = {value for value, x in self.have.inputs.items() if x == name}
        reading = (
            x for x in self.loops.statements for t in range(first, s.when.first) if x.when.on(t)
        )
        read = {(side, part.value) for x in reading for side, part in inputs_read(x)}
        return untouched(self.loops, s, first) and not read & others

    def step(self, frame: Frame, starts: list[Start], before: list[str]) -> None:
        """The steps of a frame: values that begin to travel, messages, attends, arrivals."""
        meetings = self.meetings(frame)
        moves = list(transfers(self.walked, frame))
        before += self.expected(moves)
        begun = self.begin(frame, before)
        self.paste(tupled(before))
        if frame.loop:
            self.write(f"for step in range({frame.names.count(len(frame.steps))}):")
            self.margin += 4
        for s in starts:
            self.under([(both(conditions(s.when, frame)), self.start(s))])
        self.peers_said = None
        early, last = self.exchanges(frame, meetings, moves, begun)
        alone = len(moves) == 1 and not (meetings or begun)
        for move in moves:
            self.send(move, alone)
        attends = joined(self.attend(meeting, frame) for meeting in meetings)
        self.under([*early, *begun, *attends])
        for move in (x for x in moves if x.into):
            self.arrive(move)
        for move in (x for x in moves if not x.into):
            self.receive(move)
        self.under(last)
        self.margin -= 4 * frame.loop

    def begin(self, frame: Frame, before: list[str]) -> list[Lines]:
        """The lines with which sums begin anew in the steps of a frame, after older ones left.

        What is there before a loop, as sums that begin once and stay, goes to the lines `before`.
        """
        lines = list[tuple[str, str]]()
        for cell, name in self.have.cells.items():
            begun = sorted(self.walked.lasting(cell)[0] & {*frame.steps})
            if begun and not self.assigned(cell, frame.steps):
                comes = self.loops.exchanges.get(cell[1]) in frame.statements  # what has its shape
                early, blank = frame.loop and not comes, self.have.blank(cell)
                used = self.used(cell, range(frame.steps[0], begun[0] + 1))
                once = early and len(begun) == 1 and not used
                if once or (early and name not in self.defined):
                    before.append(blank)
                if not once:
                    asks = comes or self.stays(name, frame)
                    lines.append((both(times(begun, frame)) if asks else "", blank))
            if begun:
                self.defined.add(name)
        groups = groupby(dict.fromkeys(lines), lambda line: line[0])
        return [(when, tupled([blank for _, blank in group])) for when, group in groups]

    def stays(self, name: str, frame: Frame) -> bool:
        """True if a variable has sums at the start of a step of a frame that it had before."""
        alike = [cell for cell, other in self.have.cells.items() if other == name]
        return any(self.walked.lasting(cell)[1] & {*frame.steps} for cell in alike)

    def used(self, cell: Cell, steps: Iterable[int]) -> bool:
        """True if in some steps other sums have the variable of these, or older ones leave it."""
        added = {c for _, t, c in self.walked.additions() if t in steps} - {cell}
        taken = {c for c, on in self.walked.taken.items() if on & {*steps}}
        return any(self.have.cells.get(c) == self.have.cells[cell] for c in added | taken)

    @property
    def overlapped(self) -> bool:
        """True if a rank attends while tensors are exchanged."""
        return any(
            s.when.on(t)
            for frame in self.frames
            for s in frame.statements
            if isinstance(s, Exchange | Return)
            for meeting in self.meetings(frame)
            for t in meeting.steps
        )

    def exchanges(
        self, frame: Frame, meetings: list[Meeting], moves: list[Transfer], begun: list[Lines]
    ) -> list[list[Lines]]:
        """All with all: what everybody has, and sums back; the lines before and after attends.

        Beside attends exchanges are started before these, and waited for after them; also where
        what they take has another value by then.
        """
        swaps = [s for s in frame.statements if isinstance(s, Exchange | Return)]
        made = [self.swap(s, [t for t in frame.steps if s.when.on(t)], frame.names) for s in swaps]
        busy, conflict = {t for m in meetings for t in m.steps}, False
        text = "\n".join(line for _, lines in begun for line in lines)
        news = {*WORD.findall(" ".join(re.findall("^(.*?) = ", text, re.MULTILINE)))}
        news |= {self.target(move) for move in moves}
        for x in made:
            conflict |= bool(news & {*WORD.findall(x.tensors.each(x.start).text)})
            news |= {*WORD.findall(x.into.text)} if x.assigns else set()
        early, late = list[Lines](), list[Lines]()
        for x in made:
            when = both(times(x.steps, frame))
            beside = conflict or bool(busy & {*x.steps})
            first, last = x.lines(WIDTH - self.margin - 4 * bool(when), beside)
            early += [(when, first)] * beside
            late.append((when, [*first * (not beside), *last]))
        return [early, late]

    def start(self, s: Start) -> list[str]:
        """A value begins to travel."""
        target = self.have.inputs[s.side, s.name]
        source = self.have.part(s.tensors, s.part).text
        for x in self.loops.statements:
            if isinstance(x, Send) and x.name == s.part.value and late(self.loops, x):
                source = f"wait({self.have.handles[x]})"
        self.defined.add(target)
        return [f"{target} = {source}"] if target != source else []
