"""Registers   the contents of every register on all ranks, as numpy tables.

Inputs are block numbers and sums are weights, both [ranks, pieces, heads]; -1 is no block. Slices
select the same elements of a table as a target selects from its tensors.
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
Places = tuple[Ints, Ints, Ints]  # indices of elements of a table


class ProgramError(PlanError):
    """A lowered program that does not compute its plan: a defect of the compiler."""


@dataclass(eq=False)
class Registers:
    """The registers of all ranks; `leaving` are sums in transit, and the ranks that send them."""

    coordinates: Ints  # of all ranks: [ranks, axes + 1]
    mesh: tuple[int, ...]
    sides: dict[SideName, Side]
    tables: dict[Register, Held] = field(default_factory=dict)
    leaving: dict[str, tuple[Register, Flags]] = field(default_factory=dict)
    op: Op | None = None
    step: int = 0

    def fail(self, reason: str, rank: int | None = None) -> NoReturn:
        """Raises ProgramError for the current op."""
        suffix = f", rank {rank}" if rank is not None else ""
        raise ProgramError(f"step {self.step}{suffix}: {reason}, in {self.op}")

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
        """Returns the indices of a slice in step t, and marks valid ones: [ranks, pieces, heads].

        Fails if a slice exceeds its register on an active rank.
        """
        ranks, shape = np.arange(len(on)), self.table(part.register).shape
        pieces, has_piece = self._along(part.pieces, 1, shape[1], t, on)
        heads, has_head = self._along(part.heads, part.by, shape[2], t, on)
        indices = ranks[:, None, None], pieces[:, :, None], heads[:, None, :]
        return indices, has_piece[:, :, None] & has_head[:, None, :]

    def _along(
        self, ends: Ends | None, by: int, size: int, t: int, on: Flags
    ) -> tuple[Ints, Flags]:
        """Returns indices along one axis of a table, and marks valid ones: [ranks, w] each."""
        if ends is None:
            indices = np.broadcast_to(np.arange(size), (len(on), size))
            return indices, np.ones(indices.shape, np.bool_)
        low, high = (e.at(t, self.coordinates) for e in ends)
        outside = (low < 0) | (high >= size) | (low > high)
        self.fail_where(on & outside, "a slice exceeds its register")
        width = int((high - low)[on].max()) // by + 1 if on.any() else 1
        indices = low[:, None] + by * np.arange(width)
        valid = (indices <= high[:, None]) & (indices >= 0) & (indices < size)
        return np.clip(indices, 0, size - 1), valid

    def read(self, part: Slice, t: int, on: Flags) -> Held:
        """Returns the contents of a slice, empty if a rank has fewer: [ranks, w, v]."""
        indices, valid = self.places(part, t, on)
        return np.where(valid, self.table(part.register)[indices], empty_value(part.register))

    def change(self, part: Slice, t: int, on: Flags, share: Held | None = None) -> None:
        """Adds a share [ranks, w, v] to a slice of sums, or zeroes the slice."""
        (indices, valid), active = self.places(part, t, on), on[:, None, None]
        for register, senders in self.leaving.values():
            if register == part.register:
                self.fail_where(on & senders, f"{register} changes while it is sent")
        places = tuple(x[valid & active] for x in np.broadcast_arrays(*indices))
        if share is None:
            self.table(part.register)[places] = 0
            return
        if valid.shape != share.shape:
            self.fail(f"sums of shape {valid.shape[1:]} get shares of shape {share.shape[1:]}")
        lost = (active & ~valid & (share != 0)).any(axis=(1, 2))
        self.fail_where(lost, "shares exceed the sums that they are added to")
        self.table(part.register)[places] += share[valid & active]

    def bind(self, register: Register, on: Flags, value: Held) -> None:
        """Binds a register to a new value on active ranks."""
        if not on.any():
            return
        if not on.all():
            old = self.table(register)
            if old.shape != value.shape:
                self.fail(f"{register} has {old.shape[1:]} pieces and heads, or {value.shape[1:]}")
            value = np.where(on[:, None, None], value, old)
        self.tables[register] = value
        for handle, (sums, senders) in self.leaving.items():
            self.leaving[handle] = sums, senders & ~on if sums == register else senders


def empty_value(register: Register) -> Any:
    """Returns the value of an empty place: no block, or weight 0."""
    return np.uint64(0) if register.accumulates else np.intp(-1)
