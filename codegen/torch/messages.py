"""The messages of a pass as text: how one starts, what waits for it, and where it goes."""

from collections.abc import Iterator

from codegen.reflow import WIDTH
from codegen.torch.state import State, indented
from codegen.torch.transfers import Transfer
from codegen.torch.variables import late, readers
from planner.errors import PlanError
from planner.loops.form import OWN, Start


class Messages(State):
    """The part of a pass that sends and receives."""

    def send(self, move: Transfer, alone: bool) -> None:
        """Start a message; one that is `alone`, beside no attend, where it is waited for."""
        s, handle, time = move.s, self.have.handles[move.s], move.time()
        if not move.source:
            message = self.have.part(s.tensors, s.parts[0]).text
        elif move.into == (s.tensors[0], OWN) and self.walked.complete(move.into) and not move.root:
            message = self.have.cast(move.source).text
        else:
            message = self.have.cells[move.source]
        group = self.group(move.axes[0]) if len(move.axes) < len(self.axes) else "group"
        if move.root:
            verb, given = "reduction" if move.into else "broadcast", [message, move.root[1], group]
        else:
            to, source = self.peers(move)
            verb, given = "exchange", [message, to, source, group]
        if move.guarded:
            if late(self.loops, s):
                raise PlanError("some ranks wait for a message longer than others")
            on, around = move.asked(to, source), len(f"{handle} = {verb}(*)")
            around += alone * len(f"wait() or {handle}")
            if self.keeps(move) or len(", ".join([*given, on])) > WIDTH - self.margin - around:
                self.write(f"on = {on}")
                on = "on"
            given.append(f"*{on}")
        begun, waits = f"{verb}({', '.join(given)})", late(self.loops, s)
        begun += f" if {time} else None" * bool(time and not waits)
        alone &= not (waits or self.keeps(move))  # else it leaves before owners have new sums
        self.started[s] = begun if alone else handle
        if not alone:
            line = f"{handle} = {begun}"
            self.paste(indented(f"if {time}:", [line]) if time and waits else [line])
        self.keep_own(move)

    def keeps(self, move: Transfer) -> bool:
        """True if a message runs in the step in which owners that do not send keep their sums."""
        t = self.walked.kept.get(move.source, -1) if move.source else -1
        return t in move.domain.steps and move.s.when.on(t)

    def keep_own(self, move: Transfer) -> None:
        """Owners that do not send their sums keep them, in the step in which others do."""
        if not move.source or not self.keeps(move):
            return
        t, own = self.walked.kept[move.source], (move.s.tensors[0], OWN)
        when = f"step == {t - move.domain.names.first} and " * (move.domain.names.at is None)
        kept, name = (self.have.cells[cell] for cell in (own, move.source))
        line = f"merge(*{kept}, *{name})" if own[0] == "OUT" else f"add({kept}, {name})"
        line = line if t in self.walked.lasting(own)[1] else f"{kept} = {name}"
        line = self.have.blank(own) if move.source == own else line
        self.paste(indented(f"if {when}{'not ' * (move.source != own)}on[0]:", [line]))

    def target(self, move: Transfer) -> str:
        """The name of what a message brings or is added to."""
        if move.into:
            return self.have.cells[move.into]
        return self.have.inputs[move.s.side, move.s.name]

    def came(self, move: Transfer) -> str:
        """The text of all that a message brings."""
        return f"wait({self.started[move.s]})"

    def peers(self, move: Transfer) -> tuple[str, str]:
        """Where to and where from, by a name where it is the same in all steps."""
        to, source = move.peers()
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

    def arrive(self, move: Transfer) -> None:
        """Sums that came are added to what is here, or are all there is."""
        assert move.into
        name, came = self.target(move), self.came(move)
        if move.s == self.assigned(move.into, move.domain.steps):
            self.write(f"{name} = {came}")
        elif move.into[0] != "OUT":
            self.write(f"add({name}, {came})")
        elif move.root:
            raise PlanError("partial outputs go to one rank at once")
        else:
            self.paste(indented(f"if came := {came}:", [f"merge(*{name}, *came)"]))

    def receive(self, move: Transfer) -> None:
        """Lets the value that came be read from the next step on; waits where nobody reads it."""
        came, kinds = self.came(move), readers(self.loops, move.s)
        if not kinds:
            self.write(came)
        elif kinds != {Start}:
            name = self.target(move)
            self.defined.add(name)
            self.write(f"{name} = {came}{f' or {name}' * self.partly(move)}")

    def partly(self, move: Transfer) -> bool:
        """True if a message does not come to all ranks in all steps that are printed."""
        return move.guarded or bool(move.time())

    def expected(self, moves: list[Transfer]) -> Iterator[str]:
        """Something to keep where no input comes, if nothing has come before."""
        for move in moves:
            if not move.into and self.partly(move) and readers(self.loops, move.s) - {Start}:
                side, name, value = move.s.side, self.target(move), move.s.parts[0].value
                if name not in self.defined:
                    self.defined.add(name)
                    yield f"{name} = {self.have.value(side, self.have.like(side, value)).text}"
