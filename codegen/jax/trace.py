"""trace(loops, plan)   the rows that each attend of a loop form stands for, step by step.

Beside the rows it says where sums go: `sinks` has, for what an attend adds and for what a message
of sums brings, the statements that take it away next. HOME stands for none: it is at home then.
"""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from planner.columns import distinct, flat
from planner.errors import PlanError
from planner.ir import TENSORS, Plan
from planner.loops.expand import Expansion
from planner.loops.form import (
    OWN,
    AllToAll,
    Attend,
    Gather,
    Ints,
    Loops,
    Part,
    Return,
    Scatter,
    Send,
    Shift,
    Start,
)

HOME = -1
Source = tuple[int, str]  # a statement, and the side of the sums that it adds to
Presence = dict[str, NDArray[np.bool_]]


@dataclass(frozen=True)
class Rectangles:
    """The rectangle of an attend in a step: pieces of a query value and a key value on some ranks.

    `pieces`: first and last piece of each side [n, 4]; `q` and `kv`: the blocks in the rectangle,
    `q_row` and `kv_row`: all blocks of the two values, in their order [n, w].
    """

    rank: Ints
    pieces: Ints
    q: Ints
    kv: Ints
    q_row: Ints
    kv_row: Ints


@dataclass
class Trace:
    """The rows of every attend in every step that it runs in, and where sums go."""

    rows: list[dict[int, Rectangles]] = field(default_factory=list)
    sinks: dict[Source, set[int]] = field(default_factory=lambda: defaultdict(set))
    delays: dict[Source, set[int]] = field(default_factory=lambda: defaultdict(set))
    widths: dict[tuple[str, str], int] = field(default_factory=dict)  # pieces of a value
    stay: dict[tuple[str, str], Ints] = field(default_factory=dict)  # values there at the end
    made: list[dict[Source, Ints]] = field(default_factory=list)  # ranks that get sums in a step
    everybody: dict[int, Ints] = field(default_factory=dict)  # that runs a send of sums
    mixed: set[int] = field(default_factory=set)  # sends that everybody runs, to others' loss


def receivers(loops: Loops, s: Send, t: int) -> Ints:
    """The rank that each rank sends to in a step: [ranks]."""
    if not isinstance(s.hop, Shift):
        raise PlanError("messages along a list of ranks, or of a root")
    at = loops.coordinates()
    to = [at[:, axis] + e.at(t, at) for axis, e in enumerate(s.hop.by)]
    return np.ravel_multi_index(tuple(to), loops.mesh, mode="wrap")


def senders(loops: Loops, s: Send, t: int) -> Ints:
    """The ranks that send in a step."""
    at = loops.coordinates()
    asked = at[receivers(loops, s, t)] if s.when.guard.receiver else at
    return np.flatnonzero(s.when.guard.at(t, asked))


def everybody(loops: Loops, s: Send) -> Ints:
    """The ranks that run a send whose way is the same in all steps: an interval, or all of them.

    More may be sent then than planned: inputs that nobody reads, or sums that are zero.
    """
    steps = [t for t in range(s.when.first, s.when.last + 1) if s.when.on(t)]
    ranks = distinct(np.concatenate([senders(loops, s, t) for t in steps]))
    whole = len(ranks) == ranks[-1] - ranks[0] + 1
    return ranks if whole else loops.coordinates()[:, -1]


def without(ranks: Ints, fewer: Ints) -> Ints:
    """The ranks but for fewer of them."""
    on = np.ones(int(ranks.max(initial=0)) + 1, np.bool_)
    on[fewer] = False
    return ranks[on[ranks]]


def is_stepwise(s: Send) -> bool:
    """True if the way of a message changes with the step."""
    return isinstance(s.hop, Shift) and any(e.step for e in s.hop.by)


def sends_inputs(s: object) -> bool:
    """True for messages of copies."""
    return isinstance(s, Send) and not TENSORS[s.tensors[0]].accumulates


def trace(loops: Loops, plan: Plan, at_home: bool = False) -> Trace:
    """Walk the steps once forwards, for rows and for which sums exist, and once back for sinks.

    `at_home`: sums for what ranks own stay with them, whatever the plan does.
    """
    state = Expansion(loops, plan)
    result, blocks = Trace(), {side: len(plan.partition.side(side)) for side in ("q", "kv")}
    for n, s in enumerate(loops.statements):
        if isinstance(s, Send) and not sends_inputs(s) and not is_stepwise(s):
            result.everybody[n] = everybody(loops, s)
    there = {side: np.zeros((state.ranks, n), np.bool_) for side, n in blocks.items()}
    made: list[list[tuple[Source, Ints, Ints]]] = []
    taken: list[list[tuple[int, str, Ints, Ints]]] = []
    for t in range(loops.steps):
        step = _Step(state, result, t, there, at_home)
        for number, s in enumerate(loops.statements):
            if s.when.on(t):
                step.read(number, s)
        state.arrive()
        for side, rank, block in step.arrivals:
            there[side][rank, block] = True
        result.rows.append(step.rows)
        made.append(step.made)
        result.made.append({source: distinct(rank) for source, rank, _ in step.made})
        taken.append(step.taken)
    result.stay = state.stay
    _follow(result, blocks, state.ranks, made, taken)
    return result


class _Step:
    """One step of the walk: `made` and `taken` are (rank, block) pairs of sums."""

    def __init__(
        self, state: Expansion, result: Trace, t: int, there: Presence, at_home: bool
    ) -> None:
        self.state, self.result, self.t, self.there = state, result, t, there
        self.at_home = at_home
        self.rows: dict[int, Rectangles] = {}
        self.made: list[tuple[Source, Ints, Ints]] = []
        self.taken: list[tuple[int, str, Ints, Ints]] = []
        self.arrivals: list[tuple[str, Ints, Ints]] = []

    def read(self, number: int, s: object) -> None:
        match s:
            case Start():
                self.state.start(s, self.t)
            case Attend():
                self.attend(number, s)
            case Send():
                self.state.send(s, self.t)
                if TENSORS[s.tensors[0]].accumulates:
                    src, dst, blocks = self.messages(s)
                    self.check_others(number, s, src)
                    self.send_sums(number, TENSORS[s.tensors[0]].side, [(src, dst, blocks)])
            case Return():
                self.send_sums(number, TENSORS[s.tensors[0]].side, self.state.returned(s))
            case Scatter():
                self.send_sums(number, TENSORS[s.tensors[0]].side, self.state.scatter(s, self.t))
            case Gather() | AllToAll():
                self.state.exchange(s, self.t)
            case _:
                raise PlanError("a broadcast or a reduction")

    def messages(self, s: Send) -> tuple[Ints, Ints, Ints]:
        """The messages of a send of sums, those of a rank to itself included."""
        side, src = TENSORS[s.tensors[0]].side, senders(self.state.loops, s, self.t)
        parts = [self.state.blocks(p, side, self.t, src, sums=True) for p in s.parts]
        return src, receivers(self.state.loops, s, self.t)[src], np.hstack(parts)

    def check_others(self, number: int, s: Send, src: Ints) -> None:
        """Note a send of sums that ranks would run beside it whose sums go elsewhere."""
        others = without(self.result.everybody.get(number, src), src)
        side = TENSORS[s.tensors[0]].side
        for part in s.parts:
            rank, block = flat(others, self.state.blocks(part, side, self.t, others, sums=True))
            if self.there[side][rank, block].any():
                self.result.mixed.add(number)

    def attend(self, number: int, s: Attend) -> None:
        if len({(p.value, p.lag) for p in s.q}) > 1 or len({(p.value, p.lag) for p in s.kv}) > 1:
            raise PlanError("an attend of several values at once")
        who, q, kv = self.state.attend(s, self.t)
        q_row, q_ends = self.part(s.q[0], "q", who)
        kv_row, kv_ends = self.part(s.kv[0], "kv", who)
        self.rows[number] = Rectangles(who, np.hstack([q_ends, kv_ends]), q, kv, q_row, kv_row)
        for side, blocks, part in (("q", q, s.q[0]), ("kv", kv, s.kv[0])):
            if self.at_home and part.value == OWN:
                self.result.sinks[number, side].add(HOME)
                continue
            rank, block = flat(who, blocks)
            self.made.append(((number, side), rank, block))
            self.arrivals.append((side, rank, block))

    def part(self, p: Part, side: str, who: Ints) -> tuple[Ints, Ints]:
        """All blocks of a part's value, and its first and last piece: arrays [n, ..]."""
        if p.heads is not None:
            raise PlanError("an attend of some heads of a value")
        whole = self.state.blocks(Part(p.value, p.lag), side, self.t, who)
        table = self.state.stay.get((p.value, side))
        if table is None:
            born = self.t - int(p.lag.at(self.t, self.state.coordinates[:1])[0])
            table = self.state.aged[p.value, side, born]
        width = table.shape[1]
        if self.result.widths.setdefault((p.value, side), width) != width:
            raise PlanError(f"{p.value} has more pieces in some steps than in others")
        ends = np.zeros((len(who), 2), np.intp)
        ends[:, 1] = width - 1
        if p.pieces is not None:
            at = self.state.coordinates[who]
            for n, e in enumerate(p.pieces):
                ends[:, n] = e.at(self.t, at)
        return whole, ends.clip(0, width - 1)

    def send_sums(self, number: int, side: str, messages: list[tuple[Ints, Ints, Ints]]) -> None:
        """Sums that exist leave their ranks, and are there on others after the step."""
        for src, dst, blocks in messages:
            (rank, block), (to, _) = flat(src, blocks), flat(dst, blocks)
            on = self.there[side][rank, block]
            self.taken.append((number, side, rank[on], block[on]))
            self.made.append(((number, side), to[on], block[on]))
            self.arrivals.append((side, to[on], block[on]))
        for _, of, rank, block in self.taken:
            self.there[of][rank, block] = False


def _follow(
    result: Trace,
    blocks: dict[str, int],
    ranks: int,
    made: list[list[tuple[Source, Ints, Ints]]],
    taken: list[list[tuple[int, str, Ints, Ints]]],
) -> None:
    """Backwards: the statement that takes each sum next, and after how many steps."""
    after = {side: np.full((ranks, n), HOME) for side, n in blocks.items()}
    when = {side: np.full((ranks, n), HOME) for side, n in blocks.items()}
    for t in reversed(range(len(made))):
        for source, rank, block in made[t]:
            side = source[1]
            ends = after[side][rank, block]
            result.sinks[source] |= set(distinct(ends).tolist())
            steps = when[side][rank, block] - t
            result.delays[source] |= set(distinct(steps[ends != HOME]).tolist())
        for number, side, rank, block in taken[t]:
            after[side][rank, block] = number
            when[side][rank, block] = t
