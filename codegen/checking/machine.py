"""Registers   what every register has on all ranks at once, as numpy tables.

Inputs are block numbers, sums are weights, both [ranks, pieces, heads]; block -1 is nothing. A
slice is read at the same places of a table as it is written, as a target slices its tensors.
"""

from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from codegen.conditions import Flags
from codegen.ir import Op, Register, Slice
from planner.errors import PlanError
from planner.loops.form import Ends, Ints
from planner.masks.mask import SideName
from planner.partitions import Side

Weights = NDArray[np.uint64]
Held = NDArray[Any]  # what a register has: blocks or weights


class ProgramError(PlanError):
    """A lowered program that does not compute its plan: a defect, not bad input."""


@dataclass(frozen=True, eq=False)
class Index:
    """Places in a table, on each rank: pieces [ranks, w], heads [ranks, v], and which are any."""

    pieces: Ints
    heads: Ints
    on: Flags  # [ranks, w, v]

    @property
    def at(self) -> tuple[Ints, Ints, Ints]:
        """The index of an array."""
        ranks = np.arange(len(self.pieces))
        return ranks[:, None, None], self.pieces[:, :, None], self.heads[:, None, :]

    def places(self, on: Flags) -> tuple[Ints, Ints, Ints]:
        """The index of those that are any, on ranks that are on; each once."""
        here = self.on & on[:, None, None]
        ranks, pieces, heads = np.broadcast_arrays(*self.at)
        return ranks[here], pieces[here], heads[here]


@dataclass(eq=False)
class Registers:
    """The registers of all ranks; `leaving` are sums under way, and the ranks that send them."""

    where: Ints  # coordinates of all ranks
    mesh: tuple[int, ...]
    sides: dict[SideName, Side]
    inputs: dict[Register, Ints] = field(default_factory=dict)
    sums: dict[Register, Weights] = field(default_factory=dict)
    leaving: dict[str, tuple[Register, Flags]] = field(default_factory=dict)
    op: Op | None = None
    step: int = 0

    def fail(self, reason: str, rank: int | None = None) -> NoReturn:
        """Raises ProgramError for the op that runs."""
        where = f", rank {rank}" if rank is not None else ""
        raise ProgramError(f"step {self.step}{where}: {reason}, in {self.op}")

    def fail_where(self, wrong: Flags, reason: str) -> None:
        """Raises ProgramError for the first rank at which something is wrong."""
        if wrong.any():
            self.fail(reason, int(wrong.argmax()))

    def blocks(self, register: Register) -> Ints:
        """The blocks of inputs."""
        if register not in self.inputs:
            self.fail(f"{register} has no value")
        return self.inputs[register]

    def weights(self, register: Register) -> Weights:
        """The weights of sums."""
        if register not in self.sums:
            self.fail(f"{register} were not begun")
        return self.sums[register]

    def index(self, part: Slice, t: int, on: Flags) -> Index:
        """The places of a slice in step t; fails where one lies outside on ranks that are on."""
        accumulates = part.register.accumulates
        table = self.weights(part.register) if accumulates else self.blocks(part.register)
        pieces, heads = (
            self._along(ends, n, t, on)
            for ends, n in zip((part.pieces, part.heads), table.shape[1:], strict=True)
        )
        (p, has_piece), (h, has_head) = pieces, heads
        return Index(p, h, has_piece[:, :, None] & has_head[:, None, :])

    def _along(self, ends: Ends | None, size: int, t: int, on: Flags) -> tuple[Ints, Flags]:
        """Places along one axis of a table, and which are any: [ranks, w] each."""
        if ends is None:
            every = np.broadcast_to(np.arange(size), (len(self.where), size))
            return every, np.ones(every.shape, np.bool_)
        low, high = (e.at(t, self.where) for e in ends)
        self.fail_where(on & ((low < 0) | (high >= size) | (low > high)), "a slice lies outside")
        width = int((high - low)[on].max()) + 1 if on.any() else 1
        at = low[:, None] + np.arange(width)
        inside = (at <= high[:, None]) & (at >= 0) & (at < size)
        return np.clip(at, 0, size - 1), inside

    def read(self, part: Slice, t: int, on: Flags) -> Ints:
        """The blocks of a slice of inputs, -1 where a rank has fewer: [ranks, w, v]."""
        index = self.index(part, t, on)
        return np.where(index.on, self.blocks(part.register)[index.at], -1)

    def take(self, part: Slice, t: int, on: Flags) -> Weights:
        """The weights of a slice of sums: [ranks, w, v]."""
        index = self.index(part, t, on)
        return np.where(index.on, self.weights(part.register)[index.at], np.uint64(0))

    def add(self, part: Slice, t: int, on: Flags, share: Weights) -> None:
        """Adds a share [ranks, w, v] to a slice of sums."""
        index, sums = self.index(part, t, on), self.weights(part.register)
        self.fail_where(
            on & self.sent(part.register), f"{part.register} change while they are sent"
        )
        share = np.where(on[:, None, None], share, np.uint64(0))
        if index.on.shape != share.shape:
            self.fail(f"sums of {index.on.shape[1:]} get shares of {share.shape[1:]}")
        self.fail_where((~index.on & (share != 0)).any(axis=(1, 2)), "sums lack places for shares")
        places = index.places(on)
        sums[places] += share[index.on & on[:, None, None]]

    def clear(self, part: Slice, t: int, on: Flags) -> None:
        """Zeroes a slice of sums."""
        self.fail_where(
            on & self.sent(part.register), f"{part.register} change while they are sent"
        )
        index, sums = self.index(part, t, on), self.weights(part.register)
        sums[index.places(on)] = 0

    def begin(self, register: Register, shape: tuple[int, ...], on: Flags) -> None:
        """New sums on ranks that are on, of which no message that is under way knows."""
        old, new = self.sums.get(register), np.zeros(shape, np.uint64)
        if old is not None and not on.all():
            if old.shape != shape:
                self.fail(f"{register} have different shapes on different ranks")
            new = np.where(on[:, None, None], new, old)
        self.sums[register] = new
        for handle, (sums, ranks) in self.leaving.items():
            self.leaving[handle] = sums, ranks & ~on if sums == register else ranks

    def sent(self, register: Register) -> Flags:
        """The ranks whose sums are under way."""
        made = np.zeros(len(self.where), np.bool_)
        for sums, ranks in self.leaving.values():
            made |= ranks & (sums == register)
        return made

    def bind(self, register: Register, on: Flags, blocks: Ints) -> None:
        """Gives inputs new blocks on ranks that are on; elsewhere they stay what they are."""
        if not on.any():
            return
        old = self.inputs.get(register)
        if old is None or on.all():
            old = np.full_like(blocks, -1)
        shape = tuple(max(pair) for pair in zip(old.shape, blocks.shape, strict=True))
        new, old = _widened(blocks, shape), _widened(old, shape)
        self.inputs[register] = np.where(on[:, None, None], new, old)


def _widened(table: Ints, shape: tuple[int, ...]) -> Ints:
    wide = np.full(shape, -1, table.dtype)
    wide[:, : table.shape[1], : table.shape[2]] = table
    return wide
