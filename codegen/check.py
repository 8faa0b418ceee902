"""check(program, rows)   runs a program on all ranks, and tests that it adds each live pair once.

Inputs are tables of block numbers. Sums are weights: each attended pair of a query block and a key
block adds the product of two random numbers, modulo 2^64, to the sums of the tokens that the op
names. Unless 64 random bits agree by chance, final sums are right only if each live pair was added
exactly once, to the right tokens. The cost of the check grows like the program. It works for any
number of ranks and does not depend on the target.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import assert_never

import numpy as np

from ringloom.codegen import ir
from ringloom.codegen.checking.machine import Held, ProgramError, Registers
from ringloom.codegen.checking.messages import arrivals
from ringloom.codegen.conditions import Flags, holds
from ringloom.codegen.ir import Place, Program, Register, Slice
from ringloom.codegen.lowering.order import is_interleaved, is_scattered
from ringloom.planner.analysis.kinds import KINDS, Kinds
from ringloom.planner.analysis.tiles import tiles
from ringloom.planner.ir import ACCUMULATORS, QUERY_SIDE
from ringloom.planner.ir import Attend as Rectangle
from ringloom.planner.loops.expand import Expansion
from ringloom.planner.loops.form import HELD, OWN, Ints
from ringloom.planner.loops.values import have_same_blocks
from ringloom.planner.masks.mask import SideName

__all__ = ["ProgramError", "check"]
CELLS = 1 << 20  # pairs of blocks processed at a time
SEED = 20261128
SIDES: tuple[SideName, ...] = ("q", "kv")
ILL_FORMED = ArithmeticError, LookupError, TypeError, ValueError
Tables = dict[SideName, Ints]


def check(
    program: Program, rows: Expansion, held: Mapping[Register, Ints] = MappingProxyType({})
) -> dict[Register, Ints]:
    """Runs a program; raises ProgramError with op, rank and step unless it computes its plan.

    Returns the blocks that the forward pass leaves on each rank: `held` of the backward pass.
    """
    machine = Machine(program, rows)
    try:
        machine.begin(rows, held)
        machine.run(program.ops, 0, np.ones(rows.plan.ranks, np.bool_))
        return machine.finish()
    except ProgramError:
        raise
    except ILL_FORMED as error:
        raise ProgramError(f"step {machine.step}: {error!r}, in {machine.op}") from error


class Machine(Registers):
    """The state of all ranks while they run a program."""

    def __init__(self, program: Program, rows: Expansion) -> None:
        sides = {side: rows.plan.partition.side(side) for side in SIDES}
        super().__init__(rows.coordinates, program.mesh, sides)
        self.program, self.plan, self.kinds = program, rows.plan, Kinds(rows.plan)
        self.tiles, self.sums = tiles(rows.plan), ACCUMULATORS[rows.plan.pass_]
        self.tensors = dict[Register, set[str]]()  # of each register of inputs
        self.pending = dict[str, tuple[ir.Message, Flags, Held]]()
        rng = np.random.default_rng(SEED)
        self.factors = {
            s: rng.integers(1 << 64, size=len(x), dtype=np.uint64) for s, x in sides.items()
        }

    def begin(self, rows: Expansion, held: Mapping[Register, Ints]) -> None:
        """Initialises the registers with owned blocks and those that the forward pass left."""
        pass_, named = self.program.pass_, {side: rows.values[side].named for side in SIDES}
        if (self.program.mesh, pass_) != (rows.loops.mesh, rows.plan.pass_):
            self.fail("the program is for another pass or other ranks than the loops")
        registers = [Register(r.of, HELD) for r in self.program.kept if pass_ == "backward"]
        required = {Register(side, HELD) for side in SIDES if (HELD, None) in named[side]}
        if [*held] != registers or {*registers} != required:
            self.fail("the forward pass does not leave the inputs that the backward pass needs")
        for register, blocks in held.items():
            expected = named[register.side][HELD, None].table
            if not have_same_blocks(*(x.reshape(len(x), -1) for x in (blocks, expected))):
                self.fail(f"the forward pass leaves the wrong blocks for {register}")
        own = {Register(side, OWN): named[side][OWN, None].table for side in SIDES}
        self.tables |= {**own, **held}
        for register in self.tables:
            self.tensors[register] = {*QUERY_SIDE[pass_]} if register.of == "q" else {"KV"}
        if (queries := Register("q", HELD)) in held:
            self.tensors[queries] = {"Q", "OUT"}

    # ---- ops

    def run(self, ops: Iterable[ir.Op], t: int, on: Flags) -> None:
        """Runs ops in step t on the marked ranks."""
        for op in ops:
            self.op, self.step = op, t
            for register in ir.reads(op) if not [*ir.inner(op)] else ():
                self.table(register)
            match op:
                case ir.Let(into, source):
                    self.set_tensors(into, source.register, self.tensors[source.register], on)
                    self.bind(into, on, self.read(source, t, on))
                case ir.Zero(sums, like):
                    if not sums.accumulates or like.of != sums.side:
                        self.fail(f"{sums} cannot be sums in the shape of {like}")
                    self.bind(sums, on, np.zeros(self.table(like).shape, np.uint64))
                case ir.Clear(sums):
                    self.change(sums, t, on)
                case ir.Post(message):
                    self.post(message, t)
                case ir.Wait():
                    self.wait(op, t, on)
                case ir.Attend():
                    self.attend(op, t, on)
                case ir.Choose(cases):
                    remaining = on
                    for tests, case in cases:
                        active = remaining & holds(tests, [t], self.coordinates)[0]
                        if active.any():
                            self.run([case], t, active)
                        remaining = remaining & ~active
                case ir.For(steps, body):
                    for step in steps:
                        self.run(body, step, on)
                case ir.At(step, body):
                    self.run(body, step, on)
                case _:
                    assert_never(op)

    def set_tensors(self, into: Register, source: Register, tensors: set[str], on: Flags) -> None:
        """Records the tensors of a register that receives the value of another register."""
        if into.of != source.of or (into.value in (OWN, HELD) and not into.accumulates):
            self.fail(f"{into} cannot receive the value of {source}")
        if not on.all() and self.tensors.get(into, tensors) != tensors:
            self.fail(f"{into} has different tensors on different ranks")
        self.tensors[into] = tensors

    def post(self, message: ir.Message, t: int) -> None:
        """Starts a message; its sums must not change before its wait."""
        if message.handle in self.pending:
            self.fail("a message starts again before a rank has waited for it")
        self.pending[message.handle] = message, *arrivals(self, message, t)
        source = message.source.register
        if not {*message.tensors} <= ({source.of} if source.accumulates else self.tensors[source]):
            self.fail(f"{source} does not contain {' and '.join(message.tensors)}")

    def wait(self, op: ir.Wait, t: int, on: Flags) -> None:
        """Binds or adds the contents of a message."""
        if op.starts:
            self.post(op.message, t)
        message, arrived, contents = self.pending.pop(op.message.handle)
        if message != op.message:
            self.fail("no rank has started this message")
        self.leaving.pop(message.handle, None)
        register, receivers = op.into.register, arrived & on
        merged = isinstance(message.route, ir.Reduce) and register.of == "OUT"
        by_heads = op.into.heads is not None and message.complete and not op.replaces
        if by_heads and self.read(op.into, t, receivers).any():
            self.fail("complete sums arrive where others were added")
        if (message.complete != op.replaces and not by_heads) or (merged and op.replaces):
            self.fail("complete sums must replace others, and only complete sums may")
        if not op.partial:
            self.fail_where(~receivers, "a rank receives nothing")
        if not op.adds and (op.into != Slice(register) or (op.partial and op.replaces)):
            self.fail("only a part of a register is replaced")
        if receivers.any():
            self.set_tensors(register, message.source.register, {*message.tensors}, receivers)
            if op.adds:
                self.change(op.into, t, receivers, contents)
            else:
                self.bind(register, receivers, contents)

    # ---- attends

    def attend(self, op: ir.Attend, t: int, on: Flags) -> None:
        """Adds the weights of the attended pairs."""
        if (op.q.register.of, op.kv.register.of, *(s.register.of for s in op.sums)) != (
            *SIDES,
            *self.sums,
        ):
            self.fail("an attend reads or adds to registers of the wrong kind")
        optional = {"Q", "STATS"} if Register("q", HELD) in self.tables else set[str]()
        if not {*QUERY_SIDE[self.program.pass_]} - optional <= self.tensors[op.q.register]:
            self.fail(f"{op.q.register} lacks tensors that an attend reads")
        tables: Tables = {"q": self.read(op.q, t, on), "kv": self.read(op.kv, t, on)}
        for side, table in tables.items():
            empty = on & (table < 0).all(axis=(1, 2))
            self.fail_where(empty, f"an attend reads {side} before it arrives")
        self.check_heads(on, tables)
        if op.kind == "tiles":
            self.check_places(op, t, on)
        else:
            self.check_kind(op, on, tables)
        blocks = {side: x[on].reshape(on.sum(), -1) for side, x in tables.items()}
        shares = self.pair_weights(blocks)
        for target in op.sums:
            side = target.register.side
            share = np.zeros(tables[side].shape, np.uint64)
            share[on] = shares[side].reshape(-1, *share.shape[1:])
            self.change(target, t, on, share)

    def pair_weights(self, blocks: Tables) -> dict[SideName, Held]:
        """Returns the weights that pairs of blocks [n, a] and [n, b] add to each side."""
        q, kv = blocks["q"], blocks["kv"]
        rows, cols = (np.zeros(x.shape, np.uint64) for x in (q, kv))
        height, zero = max(1, CELLS // (q.shape[1] * kv.shape[1])), np.uint64(0)
        for at in range(0, len(q), height):
            part = slice(at, at + height)
            allowed = self.tiles.live(q[part][:, :, None], kv[part][:, None, :])
            q_factors, kv_factors = self.factors["q"][q[part]], self.factors["kv"][kv[part]]
            rows[part] = q_factors * np.where(allowed, kv_factors[:, None, :], zero).sum(axis=2)
            cols[part] = kv_factors * np.where(allowed, q_factors[:, :, None], zero).sum(axis=1)
        return {"q": rows, "kv": cols}

    def check_heads(self, on: Flags, tables: Tables) -> None:
        """Fails unless each kernel gets the KV heads that its query heads need."""
        ends = list[Ints]()
        for side, table in tables.items():
            first, last = np.array([(s[0], s[-1] + 1) for s in self.sides[side].slices]).T
            slice_of, present = self.sides[side].slice[table], table >= 0
            ends.append(np.where(present, first[slice_of], 1 << 30).min(axis=(1, 2)))
            ends.append(np.where(present, last[slice_of], 0).max(axis=(1, 2)))
        (a, b, c, d), group = ends, self.plan.workload.group
        within = (d - c == 1) & (c * group <= a) & (b <= d * group)
        wrong = ~within & ((a != c * group) | (b != d * group))
        self.fail_where(on & wrong, "an attend reads KV heads other than those of its queries")

    def check_kind(self, op: ir.Attend, on: Flags, tables: Tables) -> None:
        """Fails unless the kernel call of each rectangle computes exactly its allowed pairs."""
        q, kv = (tables[side][on].reshape(on.sum(), -1) for side in SIDES)
        wrong = np.zeros(len(on), np.bool_)
        kinds = self.kinds.of(Rectangle(np.flatnonzero(on), q, kv))
        wrong[on] = kinds != KINDS.index(op.kind)
        self.fail_where(wrong, f"a rectangle is not {op.kind} under the mask")
        if op.kind == "strict" and (op.q.pieces or op.kv.pieces):
            self.fail("a strict rectangle has only some pieces of a shard")
        for side in SIDES if op.kind != "full" else ():
            chunks = self.chunks(side, tables[side])
            unsorted = (chunks != sort_chunks(chunks)).any(axis=1)
            if is_interleaved(self.sides[side]) or is_scattered(self.sides[side]):
                unsorted |= (chunks >= 0).sum(axis=1) > 1
            self.fail_where(on & unsorted, f"{side} is not in sequence order")

    def check_places(self, op: ir.Attend, t: int, on: Flags) -> None:
        """Fails unless tiles are cut from the tokens at their places, in order."""
        if op.places is None:
            self.fail("the op does not name the places of the tokens of its tiles")
        for side, part, place in zip(SIDES, (op.q, op.kv), op.places, strict=True):
            expected = self.tokens(side, place, t, on)
            actual = self.chunks(side, self.read(Slice(part.register), t, on))
            width = max(expected.shape[1], actual.shape[1])
            expected, actual = (
                np.pad(x, ((0, 0), (0, width - x.shape[1])), constant_values=-1)
                for x in (expected, actual)
            )
            wrong = on & (expected != actual).any(axis=1)
            self.fail_where(wrong, f"{side} does not have the tokens at {place}")

    def tokens(self, side: SideName, place: Place, t: int, on: Flags) -> Ints:
        """Returns the sets of positions at a place, in the order of its tokens."""
        owners = np.zeros((len(on), 1), np.intp)
        for coordinate, size in zip(place.at, self.mesh, strict=True):
            along = np.arange(size)[None]
            if coordinate is not None:
                along = (coordinate.at(t, self.coordinates) % size)[:, None]
            owners = (owners[:, :, None] * size + along[:, None, :]).reshape(len(on), -1)
        own = self.read(Slice(Register(side, OWN), place.pieces), t, on)
        chunks = self.chunks(side, own)[owners].reshape(len(on), -1)
        return sort_chunks(chunks) if place.sort else chunks

    def chunks(self, side: SideName, table: Ints) -> Ints:
        """Returns sets of positions of blocks [ranks, pieces, heads]: [ranks, pieces], then -1."""
        blocks = table.max(axis=2)
        blocks = np.take_along_axis(blocks, np.argsort(blocks < 0, axis=1, kind="stable"), axis=1)
        return np.where(blocks < 0, -1, self.sides[side].chunk[blocks])

    # ---- the end

    def finish(self) -> dict[Register, Ints]:
        """Fails unless ranks have the sums of their blocks; returns what the forward pass keeps."""
        self.op, program = None, self.program
        if self.pending:
            self.fail(f"no rank has waited for {', '.join(self.pending)}")
        pieces = dict(program.pieces)
        for register, table in self.tables.items():
            count = pieces.get(register)
            if not register.accumulates and count != table.shape[1]:
                self.fail(f"{register} has {table.shape[1]} pieces, not {count}")
        weights = self.final_weights()
        for tensor in self.sums:
            register = Register(tensor, OWN)
            own = self.table(Register(register.side, OWN))
            expected = np.where(own < 0, np.uint64(0), weights[register.side][own])
            sums = self.table(register)
            if sums.shape != expected.shape:
                self.fail(f"{tensor} has shape {sums.shape[1:]}, not {expected.shape[1:]}")
            for rank, piece, head in np.argwhere(sums != expected)[:1].tolist():
                block = int(own[rank, piece, head])
                self.fail(f"{tensor} of block {block} is not the sum over all its pairs", rank)
        forward = program.pass_ == "forward"
        return {Register(r.of, HELD): self.table(r) for r in program.kept if forward}

    def final_weights(self) -> dict[SideName, Held]:
        """Returns the weights of all blocks after the last step."""
        total: dict[SideName, Held] = {
            side: np.zeros(len(x), np.uint64) for side, x in self.sides.items()
        }
        q_slice, kv_slice = self.sides["q"].slice, self.sides["kv"].slice
        for a, b in np.argwhere(self.tiles.shared_heads > 0).tolist():
            q, kv = np.flatnonzero(q_slice == a), np.flatnonzero(kv_slice == b)
            height = max(1, CELLS // len(kv))
            for part in (q[at : at + height] for at in range(0, len(q), height)):
                shares = self.pair_weights({"q": part[None], "kv": kv[None]})
                total["q"][part] += shares["q"][0]
                total["kv"][kv] += shares["kv"][0]
        return total


def sort_chunks(chunks: Ints) -> Ints:
    """Sorts sets of positions [n, w] by position, with -1 last."""
    key = np.where(chunks < 0, np.iinfo(np.int32).max, chunks)
    return np.take_along_axis(chunks, np.argsort(key, axis=1, kind="stable"), axis=1)
