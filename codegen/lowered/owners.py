"""owner(...)   the rank whose tokens a travelling value is, as text and for each step and rank."""

from dataclasses import dataclass

import numpy as np

from codegen.lowered.conditions import SIZES, Domain
from codegen.lowered.walk import Walk
from codegen.text import affine
from planner.errors import PlanError
from planner.ir import Plan
from planner.loops.form import OWN, Ints, Loops
from planner.loops.values import pack
from planner.partitions import Side


@dataclass(frozen=True)
class Owner:
    """The rank that owns all of a value: as text, and as numbers [steps, ranks]."""

    text: str
    ranks: Ints


def owner(plan: Plan, walked: Walk, side: str, value: str, domain: Domain) -> Owner:
    """The owner of a value: as far away along each axis of the mesh on every rank."""
    mesh, where, names = domain.loops.mesh, domain.loops.coordinates(), domain.names
    if value == OWN:
        return Owner("rank", np.broadcast_to(where[:, -1], domain.shape))
    far = [_distance(plan, walked, side, value, t, domain) for t in domain.steps]
    known = {t: x for t, x in zip(domain.steps, far, strict=True) if x is not None}
    if not known:
        raise PlanError("a rank would compute with a block before it has come")
    at, texts = np.broadcast_to(where[:, :-1], (*domain.shape, len(mesh))).copy(), list[str]()
    for axis, n in enumerate(mesh):
        away, by = _line({t: int(x[axis]) for t, x in known.items()}, n)
        at[:, :, axis] += (away + by * np.array(domain.steps))[:, None]
        now = names.first if names.at is None else names.at
        away = (away + by * now + n // 2) % n - n // 2
        step = 0 if names.at is not None else by
        place = affine([(1, names.axes[axis]), (step, names.step)], away)
        size = SIZES[len(mesh)][axis]
        texts.append(place if place == names.axes[axis] else f"({place}) % {size}")
    text = texts[0] if len(mesh) == 1 else f"{texts[0]} * {SIZES[2][1]} + {texts[1]}"
    return Owner(text, np.ravel_multi_index(tuple(np.moveaxis(at, 2, 0)), mesh, mode="wrap"))


def _distance(
    plan: Plan, walked: Walk, side: str, value: str, t: int, domain: Domain
) -> Ints | None:
    """The coordinates from ranks to the owner of their value; None if nobody has it."""
    held = walked.values[side].named.get((value, t))
    if held is None:
        return None
    blocks, where = held.table[:, :, 0], domain.loops.coordinates()[:, :-1]  # any heads
    here = np.flatnonzero((blocks >= 0).any(axis=1))
    owners = plan.partition.side(side).owners[blocks[here, 0]]
    owned = walked.tables[side, OWN][owners][:, :, 0]
    far = (where[owners] - where[here]) % domain.loops.mesh
    whole = blocks.shape[1] == owned.shape[1] and (blocks[here] == owned).all()
    if not whole or (far != far[0]).any():
        raise PlanError("what comes is not all of one rank's, equally far away for every rank")
    return np.asarray(far[0])


def _line(far: dict[int, int], n: int) -> tuple[int, int]:
    """Distances modulo n by step, as one at step 0 and what each step adds."""
    (i, first), (j, last) = min(far.items()), max(far.items())
    slope = (last - first) // (j - i) if j > i else 0
    for by in (slope, 1, -1):
        if all((first + by * (t - i) - x) % n == 0 for t, x in far.items()):
            return first - by * i, by
    raise PlanError("whose blocks come in a step follows no formula")


def along(pieces: Ints, mesh: tuple[int, ...], axis: int) -> Ints:
    """The pieces of all ranks along an axis, one after the other: [ranks, n] -> [ranks, n m]."""
    cube = np.moveaxis(pieces.reshape(*mesh, -1), axis, -2)
    rows = cube.reshape(*cube.shape[:-2], 1, -1).repeat(mesh[axis], axis=-2)
    return np.asarray(np.moveaxis(rows, -2, axis).reshape(len(pieces), -1))


def pieces_of(side: Side, loops: Loops, value: str) -> Ints:
    """The pieces that each rank owns, or has of an exchange in sequence order: [ranks, n]."""
    if value != OWN:
        if (s := loops.exchanges.get(value)) is None:
            raise PlanError("the backward pass reads what an exchange of the forward pass brought")
        return np.sort(along(pieces_of(side, loops, s.part.value), loops.mesh, s.axis), axis=1)
    ranks = np.arange(len(loops.coordinates()))
    blocks = pack(len(ranks), side, ranks, side.owned(len(ranks)))[:, :, 0]  # any heads
    if (blocks < 0).any():
        raise PlanError("ranks that exchange pieces own different numbers of them")
    return np.asarray(side.chunk[blocks])
