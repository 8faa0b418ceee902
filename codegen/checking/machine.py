"""Registers   the contents of every register on all ranks, as numpy tables.

Inputs are block numbers, sums are weights, both [ranks, pieces, heads]; -1 is no block. A slice is
read and written at the same places of a table, just as a target slices its tensors.
"""

from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ringloom.codegen.conditions import Flags
from ringloom.codegen.ir import Op, Register, Slice
from ringloom.planner.errors import PlanError
from ringloom.planner.loops.form import Ends, Ints
from ringloom.planner.masks.mask import SideName
from ringloom.planner.partitions import Side

Held = NDArray[Any]  # contents of a register: blocks or weights
Places = tuple[Ints, Ints, Ints]  # an index of a table


class ProgramError(PlanError):
    """A lowered program that does not compute its plan: a defect, not bad input."""


@dataclass(eq=False)
class Registers:
    """The registers of all ranks; `leaving` are sums in transit, and the ranks that send them."""

    where: Ints  # coordinates of all ranks
    mesh: tuple[int, ...]
    sides: dict[SideName, Side]
    tables: dict[Register, Held] = field(default_factory=dict)
    leaving: dict[str, tuple[Register, Flags]] = field(default_factory=dict)
    op: Op | None = None
    step: int = 0

    def fail(self, reason: str, rank: int | None = None) -> NoReturn:
        """Raises ProgramError for the current op."""
        where = f", rank {rank}" if rank is not None else ""
        raise ProgramError(f"step {self.step}{where}: {reason}, in {self.op}")

    def fail_where(self, wrong: Flags, reason: str) -> None:
        """Raises ProgramError for the first rank marked as wrong."""
        if wrong.any():
            self.fail(reason, int(wrong.argmax()))

    def table(self, register: Register) -> Held:
        """Returns the blocks or weights of a register."""
        if register not in self.tables:
            self.fail(f"{register} has no value")
        return self.tables[register]

    def places(self, part: Slice, t: int, on: Flags) -> tuple[Places, Flags]:
        """Returns the places of a slice in step t, and which exist: [ranks, pieces, heads].

        Fails if a slice exceeds its register on an active rank.
        """
        ranks, shape = np.arange(len(on)), self.table(part.register).shape
        pieces, has_piece = self._along(part.pieces, 1, shape[1], t, on)
        heads, has_head = self._along(part.heads, part.by, shape[2], t, on)
        at = ranks[:, None, None], pieces[:, :, None], heads[:, None, :]
        return at, has_piece[:, :, None] & has_head[:, None, :]

    def _along(
        self, ends: Ends | None, by: int, size: int, t: int, on: Flags
    ) -> tuple[Ints, Flags]:
        """Returns places along one axis of a table, and which exist: [ranks, w] each."""
        if ends is None:
            every = np.broadcast_to(np.arange(size), (len(on), size))
            return every, np.ones(every.shape, np.bool_)
        low, high = (e.at(t, self.where) for e in ends)
        self.fail_where(on & ((low < 0) | (high >= size) | (low > high)), "a slice lies outside")
        width = int((high - low)[on].max()) // by + 1 if on.any() else 1
        at = low[:, None] + by * np.arange(width)
        inside = (at <= high[:, None]) & (at >= 0) & (at < size)
        return np.clip(at, 0, size - 1), inside

    def read(self, part: Slice, t: int, on: Flags) -> Held:
        """Returns the contents of a slice, empty where a rank has fewer: [ranks, w, v]."""
        at, inside = self.places(part, t, on)
        return np.where(inside, self.table(part.register)[at], nothing(part.register))

    def change(self, part: Slice, t: int, on: Flags, share: Held | None = None) -> None:
        """Adds a share [ranks, w, v] to a slice of sums, or zeroes it."""
        (at, inside), here = self.places(part, t, on), on[:, None, None]
        for register, sending in self.leaving.values():
            if register == part.register:
                self.fail_where(on & sending, f"{register} change while they are sent")
        places = tuple(x[inside & here] for x in np.broadcast_arrays(*at))
        if share is None:
            self.table(part.register)[places] = 0
            return
        if inside.shape != share.shape:
            self.fail(f"sums of {inside.shape[1:]} get shares of {share.shape[1:]}")
        lost = (here & ~inside & (share != 0)).any(axis=(1, 2))
        self.fail_where(lost, "sums lack places for shares")
        self.table(part.register)[places] += share[inside & here]

    def bind(self, register: Register, on: Flags, what: Held) -> None:
        """Binds a register to a new value on active ranks."""
        if not on.any():
            return
        if not on.all():
            old = self.table(register)
            if old.shape != what.shape:
                self.fail(f"{register} has {old.shape[1:]} pieces and heads, or {what.shape[1:]}")
            what = np.where(on[:, None, None], what, old)
        self.tables[register] = what
        for handle, (sums, sending) in self.leaving.items():
            self.leaving[handle] = sums, sending & ~on if sums == register else sending


def nothing(register: Register) -> Any:
    """Returns the block, or the weight, that stands for nothing."""
    return np.uint64(0) if register.accumulates else np.intp(-1)
