"""check(program, rows)   runs the ops on all ranks at once: every live pair once, at its owner.

Inputs are tables of block numbers. Sums are weights: a query block and a key block that meet add
the product of two random numbers, modulo 2^64, to the sums of the tokens that the op names. A rank
ends with the right sums only if each pair that the mask leaves of its blocks was added exactly
once, to the right tokens: others would have to agree in 64 random bits. So the check takes time
and memory as the program does, at any number of ranks; it knows no target.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from codegen.checking.machine import ProgramError, Registers, Weights
from codegen.checking.messages import Arrival, arrivals, ordered
from codegen.conditions import Flags, holds
from codegen.ir import (
    At,
    Attend,
    Choose,
    Clear,
    For,
    Let,
    Message,
    Op,
    Place,
    Post,
    Program,
    Register,
    Slice,
    Wait,
    Zero,
)
from planner.analysis.tiles import tiles
from planner.ir import ACCUMULATORS
from planner.ir import Attend as Rectangle
from planner.loops.expand import Expansion
from planner.loops.form import HELD, OWN, Ints
from planner.loops.kinds import KINDS, Kinds
from planner.loops.values import same
from planner.masks.mask import SideName

__all__ = ["ProgramError", "check"]
CELLS = 1 << 20  # pairs of blocks looked at at a time
SEED = 20261128
SIDES: tuple[SideName, ...] = ("q", "kv")


def check(
    program: Program, rows: Expansion, held: Mapping[Register, Ints] = MappingProxyType({})
) -> dict[Register, Ints]:
    """Runs a program; raises ProgramError with op, rank and step unless it computes its plan.

    Returns the blocks that the forward pass leaves on each rank: `held` of the backward pass.
    """
    machine = Machine(program, rows, held)
    machine.run(program.ops, 0, np.ones(rows.plan.ranks, np.bool_))
    machine.finish()
    kept = program.kept if rows.plan.pass_ == "forward" else ()
    return {Register(register.of, HELD): machine.blocks(register) for register in kept}


class Machine(Registers):
    """All ranks, as they run a program."""

    def __init__(self, program: Program, rows: Expansion, held: Mapping[Register, Ints]) -> None:
        sides = {side: rows.plan.partition.side(side) for side in SIDES}
        super().__init__(rows.coordinates, program.mesh, sides)
        self.program, self.plan, self.arrivals = program, rows.plan, dict[str, Arrival]()
        self.posted = dict[str, Message]()
        self.tiles, self.kinds = tiles(rows.plan), Kinds(rows.plan)
        random = np.random.default_rng(SEED)
        self.factors = {
            s: random.integers(1 << 64, size=len(x), dtype=np.uint64) for s, x in sides.items()
        }
        for side in SIDES:
            named = rows.values[side].named
            self.inputs[Register(side, OWN)] = named[OWN, None].table
            if (value := named.get((HELD, None))) is not None:
                register = Register(side, HELD)
                blocks = self.inputs[register] = held.get(register, value.table)
                flat = (x.reshape(len(x), -1) for x in (blocks, value.table))
                if not same(*flat):
                    self.fail(f"the forward pass leaves other blocks than {register}")

    # ---- ops

    def run(self, ops: Iterable[Op], t: int, on: Flags) -> None:
        """Runs ops in step t, on some ranks."""
        for op in ops:
            self.op, self.step = op, t
            match op:
                case Let():
                    self.bind(op.into, on, self.read(op.source, t, on))
                case Zero():
                    self.begin(op.sums, self.blocks(op.like).shape, on)
                case Clear():
                    self.clear(op.sums, t, on)
                case Post():
                    self.post(op, t)
                case Wait():
                    self.wait(op, t, on)
                case Attend():
                    self.attend(op, t, on)
                case Choose():
                    self.choose(op, t, on)
                case For():
                    for step in op.steps:
                        self.run(op.body, step, on)
                case At():
                    self.run(op.body, op.step, on)
                case _:
                    assert_never(op)

    def choose(self, op: Choose, t: int, on: Flags) -> None:
        """Runs the first case that holds, on each rank."""
        left = on
        for tests, case in op.cases:
            here = left & holds(tests, [t], self.where)[0]
            if here.any():
                self.run([case], t, here)
            left = left & ~here

    def post(self, op: Post | Wait, t: int) -> None:
        """Starts a message; its sums must not change until they have left."""
        message = op.message
        if message.handle in self.arrivals:
            self.fail("a message starts again before anybody has waited for it")
        self.arrivals[message.handle] = arrivals(self, message, t)
        self.posted[message.handle] = message
        if message.source.register.accumulates:
            sending = self.arrivals[message.handle].sent
            self.leaving[message.handle] = message.source.register, sending

    def wait(self, op: Wait, t: int, on: Flags) -> None:
        """Binds what came, or adds it."""
        if op.starts:
            self.post(op, t)
        if self.posted.get(op.message.handle) != op.message:
            self.fail("nobody has started this message")
        came = self.arrivals.pop(op.message.handle)
        del self.posted[op.message.handle]
        self.leaving.pop(op.message.handle, None)
        here = came.on & on
        if not (op.partial or here.all()):
            self.fail_where(~here, "nothing comes to a rank")
        register = op.into.register
        if not here.any():
            return
        if not register.accumulates:
            self.bind(register, here, came.what)
        elif not op.replaces:
            self.add(op.into, t, here, came.what)
        elif op.partial or op.into != Slice(register):
            self.fail("sums are replaced in part")
        else:
            self.sums[register] = came.what

    # ---- attends

    def attend(self, op: Attend, t: int, on: Flags) -> None:
        """Adds the weights of the pairs that meet."""
        tables: dict[SideName, Ints] = {
            "q": self.read(op.q, t, on),
            "kv": self.read(op.kv, t, on),
        }
        for side, table in tables.items():
            empty = on & (table < 0).all(axis=(1, 2))
            self.fail_where(empty, f"an attend reads {side} that have not come")
        self.check_heads(on, tables)
        self.check_kind(op, t, on, tables)
        if tuple(s.register.of for s in op.sums) != ACCUMULATORS[self.program.pass_]:
            self.fail("an attend adds to sums of another pass")
        shares = self.met({side: x[on].reshape(on.sum(), -1) for side, x in tables.items()})
        for target in op.sums:
            table = tables[target.register.side]
            share = np.zeros(table.shape, np.uint64)
            share[on] = shares[target.register.side].reshape(-1, *table.shape[1:])
            self.add(target, t, on, share)

    def met(self, blocks: dict[SideName, Ints]) -> dict[SideName, Weights]:
        """The weights that pairs of blocks [n, a] and [n, b] add to either side."""
        q, kv = blocks["q"], blocks["kv"]
        rows, cols = (np.zeros(x.shape, np.uint64) for x in (q, kv))
        height = max(1, CELLS // (q.shape[1] * kv.shape[1]))
        for at in range(0, len(q), height):
            part = slice(at, at + height)
            live = self.tiles.live(q[part][:, :, None], kv[part][:, None, :])
            left, right = self.factors["q"][q[part]], self.factors["kv"][kv[part]]
            rows[part] = left * np.where(live, right[:, None, :], np.uint64(0)).sum(axis=2)
            cols[part] = right * np.where(live, left[:, :, None], np.uint64(0)).sum(axis=1)
        return {"q": rows, "kv": cols}

    def check_heads(self, on: Flags, tables: dict[SideName, Ints]) -> None:
        """Fails unless a kernel, which shares out KV heads evenly, gets those of its queries."""
        ends = dict[SideName, tuple[Ints, Ints]]()
        for side, table in tables.items():
            slices = self.sides[side].slices
            first, last = (np.array([*(end(s) for s in slices)]) for end in (min, max))
            slice_of = self.sides[side].slice[table]
            here = table >= 0
            low = np.where(here, first[slice_of], 1 << 30).min(axis=(1, 2))
            ends[side] = low, np.where(here, last[slice_of], -1).max(axis=(1, 2)) + 1
        (a, b), (c, d), group = ends["q"], ends["kv"], self.plan.workload.group
        within = (d - c == 1) & (c * group <= a) & (b <= d * group)
        wrong = ~within & ((a != c * group) | (b != d * group))
        self.fail_where(on & wrong, "an attend reads other heads of keys than of queries")

    def check_kind(self, op: Attend, t: int, on: Flags, tables: dict[SideName, Ints]) -> None:
        """Fails unless the mask leaves of each rectangle what its kernel call computes."""
        if op.kind == "tiles":
            if op.places is None:
                self.fail("tiles are cut of tokens at no place")
            for part, place in zip((op.q, op.kv), op.places, strict=True):
                whole = self.read(Slice(part.register), t, on)
                self.check_place(part.register.side, place, t, on, whole)
            return
        q, kv = (tables[side][on].reshape(on.sum(), -1) for side in SIDES)
        kinds = self.kinds.of(Rectangle(np.flatnonzero(on), q, kv))
        wrong = np.zeros(len(on), np.bool_)
        wrong[on] = kinds != KINDS.index(op.kind)
        self.fail_where(wrong, f"the mask makes a rectangle other than {op.kind}")
        for side in SIDES if op.kind != "full" else ():
            chunks = np.where(on[:, None], self.chunks(side, tables[side]), -1)
            self.fail_where((chunks != ordered(chunks)).any(axis=1), f"{side} is not in order")

    def chunks(self, side: SideName, table: Ints) -> Ints:
        """The sets of positions of blocks [ranks, pieces, heads], -1 for none: [ranks, pieces]."""
        blocks = table.max(axis=2)
        return np.where(blocks < 0, -1, self.sides[side].chunk[blocks])

    def check_place(self, side: SideName, place: Place, t: int, on: Flags, table: Ints) -> None:
        """Fails unless blocks are those of the tokens at a place, in their order."""
        owners = np.zeros((len(on), 1), np.intp)
        for coordinate, size in zip(place.at, self.mesh, strict=True):
            along = np.arange(size)[None]
            if coordinate is not None:
                along = (coordinate.at(t, self.where) % size)[:, None]
            owners = (owners[:, :, None] * size + along[:, None, :]).reshape(len(on), -1)
        own = self.read(Slice(Register(side, OWN), place.pieces), t, on)
        said = self.chunks(side, own)[owners].reshape(len(on), -1)
        true = self.chunks(side, table)
        said = ordered(said) if owners.shape[1] > 1 else _left(said)
        true, width = _left(true), max(said.shape[1], true.shape[1])
        said, true = (
            np.pad(x, ((0, 0), (0, width - x.shape[1])), constant_values=-1) for x in (said, true)
        )
        self.fail_where(on & (said != true).any(axis=1), f"{side} is not of the tokens at {place}")

    # ---- the end

    def finish(self) -> None:
        """Fails unless each rank has the sums of its own blocks, and what the other pass reads."""
        self.op = None
        if self.arrivals:
            self.fail(f"nobody has waited for {', '.join(self.arrivals)}")
        for tensor in ACCUMULATORS[self.program.pass_]:
            register = Register(tensor, OWN)
            own, due = self.blocks(Register(register.side, OWN)), self.due(register.side)
            wanted = np.where(own < 0, np.uint64(0), due[own])
            got = self.weights(register)
            if got.shape != wanted.shape:
                self.fail(f"{tensor} is of {got.shape[1:]}, not of {wanted.shape[1:]}")
            for rank, piece, head in np.argwhere(got != wanted)[:1].tolist():
                block = int(own[rank, piece, head])
                self.fail(f"{tensor} of block {block} is not the sum over all its pairs", rank)

    def due(self, side: SideName) -> Weights:
        """The weights that each block of a side has in the end."""
        total = np.zeros(len(self.sides[side]), np.uint64)
        for q, kv in self.slices():
            for at in range(0, len(q), max(1, CELLS // len(kv))):
                part = q[at : at + max(1, CELLS // len(kv))]
                shares = self.met({"q": part[None], "kv": kv[None]})
                blocks = {"q": part, "kv": kv}[side]
                total[blocks] += shares[side][0]
        return total

    def slices(self) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """The blocks of slices of heads that have any in common."""
        q, kv = self.sides["q"].slice, self.sides["kv"].slice
        for a, b in np.argwhere(self.tiles.shared_heads > 0).tolist():
            yield np.flatnonzero(q == a), np.flatnonzero(kv == b)


def _left(chunks: Ints) -> Ints:
    """The sets of positions of each row, -1 behind them."""
    return np.take_along_axis(chunks, np.argsort(chunks < 0, axis=1, kind="stable"), axis=1)
