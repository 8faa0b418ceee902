"""The messages of a pass as text: how one starts, what waits for it, and where it goes."""

from collections.abc import Sequence
from functools import cached_property
from itertools import count
from typing import Any

from codegen.reflow import WIDTH
from codegen.torch.frames import frames
from codegen.torch.state import State, indented
from codegen.torch.transfers import Transfer
from planner.errors import PlanError
from planner.loops.form import HELD, OWN, Send, Start, parts_of

CARRIED = {"Q": "queries", "KV": "kv", "OUT": "results", "DQ": "dq", "DKV": "dkv"}


class Messages(State):
    """The part of a pass that sends and receives."""

    def send(self, move: Transfer) -> str:
        """Start a message; the name of what waits for it."""
        s = move.s
        if move.guarded and self.late(s) and len(move.domain.steps) > 1:
            raise PlanError("a message of some ranks that is waited for after other steps")
        message = (
            self.have.message(move.source) if move.source else self.have.part(s.tensors, s.parts[0])
        )
        if move.into and self.finished(move) and not move.root:
            assert move.source
            message = self.have.cast(move.source)
        group = self.group(move.axes[0]) if len(move.axes) < len(self.axes) else "group"
        handle, time = self.handle(move), move.time()
        if move.root:
            verb, given = "reduction" if move.into else "broadcast", [message, move.root[1], group]
        else:
            to, source = self.peers(move)
            verb, given = "exchange", [message, to, source, group]
        if move.guarded:
            self.write(f"sends, comes = {move.asked(to, source)}")
            given += ["sends", "comes"]
        started = f"{verb}({', '.join(given)})"
        if not handle and not move.guarded and len(started) < WIDTH - self.margin - 30:
            return started
        handle = handle or self.handles[move.s]
        if time and self.late(move.s):
            self.paste(indented(f"if {time}:", [f"{handle} = {started}"]))
        else:
            self.write(f"{handle} = {started}{f' if {time} else None' * bool(time)}")
        return handle

    def readers(self, s: Send) -> set[type]:
        """The kinds of statements that read what a message brings."""
        return {type(x) for x in self.loops.statements for p in parts_of(x) if p.value == s.name}

    def late(self, s: Send) -> bool:
        """True if what comes is waited for where another value begins with it, and not before."""
        return s.into is None and self.readers(s) == {Start}

    def peers(self, move: Transfer) -> tuple[str, str]:
        """Where to and where from, by a name where it is the same in all steps."""
        to, source = move.peers(move.names)
        if "step" not in to:
            if self.neighbours in (None, (to, source)):
                self.neighbours = to, source
                return "after", "before"
            if self.neighbours == (source, to):
                return "before", "after"
        diagonal = len(move.axes) > 1
        if not move.guarded and not diagonal:
            return to, source
        if self.peers_said != (to, source):
            self.peers_said = to, source
            both = [f"to = {to}", f"source = {source}"]
            self.paste(both if diagonal else [f"to, source = {to}, {source}"])
        return "to", "source"

    def handle(self, move: Transfer) -> str:
        """The name of a message that is under way; none where it is waited for at once."""
        at = move.names.at
        if at is not None and move.into and not self.walked.relayed(move.into):
            assert move.source
            if at not in self.walked.added.get(move.source, ()):
                return ""  # its sums are not made anew while it is under way
        return self.handles[move.s]

    @cached_property
    def handles(self) -> dict[Send, str]:
        """Names for what waits for messages: by what they carry, where several are under way."""
        kinds, keys = dict[tuple[str, tuple[str, ...], int], str](), dict[Send, Any]()
        printed = [
            {s for s in self.loops.statements if any(s.when.on(t) for t in frame.steps)}
            for frame in frames(self.loops)
        ]
        for s in self.loops.statements:
            if isinstance(s, Send):
                into = [*self.walked.into.get(s, {}).values()]
                relayed = any(self.walked.relayed(cell) for cell in into)
                kind = "following" if relayed else "returning" if into else "arriving"
                alike = [x for x in keys if (x.name, x.tensors) == (s.name, s.tensors)]
                used = {keys[x][2] for x in alike if any(x in f and s in f for f in printed)}
                keys[s] = s.name, s.tensors, next(n for n in count() if n not in used)
                kinds.setdefault(keys[s], kind)
        for kind in ("following", "returning", "arriving"):
            named = [key for key, name in kinds.items() if name == kind]
            for n, key in enumerate(named):
                carried = CARRIED[key[1][0]]
                same = [k for k in named[:n] if CARRIED[k[1][0]] == carried]
                if len(named) > 1:
                    kinds[key] = f"{kind}_{carried}" + (f"_{len(same) + 1}" if same else "")
        return {s: kinds[key] for s, key in keys.items()}

    def finished(self, move: Transfer) -> bool:
        """True if sums reach their owners whole."""
        assert move.into
        return move.into[1] == OWN and self.walked.complete(move.into)

    def take_over(self, move: Transfer, handle: str, again: bool) -> None:
        """Sums that came go on here; `again`: they may have come by another message already."""
        assert move.into
        otherwise = ""
        if move.guarded and move.into[0] != "DKV":
            raise PlanError("sums of queries that travel on come to some ranks only")
        if move.guarded:
            name = self.have.names.cells[move.into]
            nothing = self.have.blank(move.into, "kv").removeprefix(f"{name} = ")
            otherwise = f" or {name if again else nothing}"
        self.replace(move, handle, self.have.taken(move.into), otherwise)

    def when(self, move: Transfer, handle: str, line: str) -> None:
        """A line that only a message in this step calls for."""
        if move.time():
            self.paste(indented(f"if {handle}:", [line]))
        else:
            self.write(line)

    def replace(self, move: Transfer, handle: str, target: str, otherwise: str = "") -> None:
        """Puts sums that came in the place of those here, where something came."""
        came = f"{handle}.wait(){otherwise}"
        self.write(f"{target} = {came}{f' if {handle} else {target}' * bool(move.time())}")

    def arrive(self, move: Transfer, handle: str) -> None:
        """Sums that came are added to what is here."""
        assert move.into
        into, came = move.into, f"{handle}.wait()"
        if move.root and (into[0] == "OUT" or move.anew or not self.walked.accumulates(into)):
            raise PlanError("a reduction to what is no running sum of its root")
        inside = "    " * (1 + bool(move.time()))
        if move.anew or not self.walked.accumulates(into):
            target = self.have.taken(into)
            begun = [t for cell, t in self.walked.kept.items() if cell[0] == into[0]]
            if not move.guarded:
                self.when(move, handle, f"{target} = {came}")
            elif begun and max(begun) < move.domain.steps[0]:
                self.replace(move, handle, target, f" or {target}")
            else:
                self.when(move, handle, f"if came := {came}:")
                self.write(f"{inside}{target} = came")
        elif move.guarded and into[0] == "OUT":
            self.when(move, handle, f"if came := {came}:")
            self.write(f"{inside}{self.have.arrive(into, 'came')}")
        else:
            line = self.have.arrive(into, came)
            if self.margin + len(line.split("\n")[0]) > WIDTH and move.names.at is not None:
                self.write(f"came = {came}")
                line = self.have.arrive(into, "came")
            self.when(move, handle, line)

    def receive(self, move: Transfer, handle: str) -> None:
        """Lets the value that came be read from the next step on; waits where nobody reads it."""
        side, readers = move.s.side, self.readers(move.s)
        if not readers:
            self.when(move, handle, f"{handle}.wait()")
        if readers <= {Start}:
            return
        name = self.have.names.inputs[side, move.s.name]
        self.replace(
            move, handle, name, f" or {name}" if move.guarded and name in self.lasting else ""
        )

    def last(self, moves: Sequence[Transfer]) -> None:
        """Note what has to last where nothing comes: what is sent on, or comes by several ways."""
        inputs = self.have.names.inputs
        sides = [(inputs[m.s.side, m.s.name], m.s.side) for m in moves if self.brings(m)]
        names = [name for name, _ in sides]
        sent = {
            inputs[s.side, p.value]
            for s in self.loops.statements
            if isinstance(s, Send) and not s.sums
            for p in s.parts
            if p.value not in (OWN, HELD)
        }
        self.lasting = {n for n in names if names.count(n) > 1 or n in sent}
        for name, side in sides if len(moves[0].domain.steps if moves else ()) > 1 else ():
            if not any(f" {name} = " in f" {x}" for x in self.lines):
                self.write(f"{name} = {self.have.value(side, OWN)}")

    def brings(self, move: Transfer) -> bool:
        """True for an input that has its name when it comes."""
        return not move.into and bool(self.readers(move.s) - {Start})
