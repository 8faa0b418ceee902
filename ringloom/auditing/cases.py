"""Builds the case of an audit from a layout: a name, arrays of positions, or "detect"."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ringloom.planner.disk import read
from ringloom.planner.errors import RingloomError, brief
from ringloom.planner.layouts import BY_MASK, LAYOUTS, PEER_NAMES, by_tokens, own_name
from ringloom.planner.layouts.peers import ALIASES
from ringloom.planner.partitions import Block, Partition, Side
from ringloom.planner.workload import Workload, check_request
from ringloom.runtimes.audit.case import Case, Ints, Positions

DETECT = "detect"
LARGEST = 1 << 26  # bytes of a file of positions


def case_of(
    work: Workload,
    ranks: int,
    layout: Any = "contiguous",
    *,
    passes: str = "both",
    seed: int = 0,
    equal: bool = False,
) -> Case:
    """Returns the case of a layout.

    layout: a layout name; "detect"; a partition; the positions of all tokens in layout order, to
    be cut into equal shards; or the positions of each rank, -1 for padding; or a dictionary of two
    layouts, `q` and `kv`. `equal`: pad shards of a named layout to the same length. Raises
    RingloomError for anything else.
    """
    check_request(work, ranks, "audit(attend, work, ranks=ranks)")
    if isinstance(layout, str) and layout == DETECT:
        return Case(work, ranks, passes=passes, seed=seed)
    if isinstance(layout, str | Partition):
        q, kv = _named(work, ranks, layout)
        q, kv = (_padded(q), _padded(kv)) if equal else (q, kv)
    elif isinstance(layout, dict):
        if {*layout} != {"q", "kv"}:
            raise RingloomError(
                f"a layout of two sides needs the keys q and kv, not {brief([*layout])}"
            )
        q, kv = (_given(layout[side], ranks) for side in ("q", "kv"))
    else:
        if work.seq != work.kv_seq:
            raise RingloomError("queries and keys differ in number: give layouts for q and kv")
        q = kv = _given(layout, ranks)
    return Case(work, ranks, q, kv, passes=passes, seed=seed)


def layout_of(text: str) -> Any:
    """Returns the layout that a command names: a layout name, or the content of a file.

    A .npy file contains one array; a .json file contains a list of positions, a list per rank, or
    q and kv. Raises RingloomError for anything else.
    """
    path = Path(text)
    if path.suffix == ".npy":
        return read(path, lambda data: _array(path), text, LARGEST)
    if path.suffix == ".json":
        return read(path, json.loads, text, LARGEST)
    if text != DETECT and own_name(text) not in {*LAYOUTS, *BY_MASK}:
        peers = ", ".join(sorted({*ALIASES} - {*PEER_NAMES}))
        raise RingloomError(
            f"unknown layout {brief(text)}: use {', '.join(PEER_NAMES)}, detect, a .npy or .json"
            f" file, or a name used elsewhere: {peers}"
        )
    return text


def partition_of(case: Case) -> Partition | None:
    """Returns the positions of a case as a partition; None if several ranks have the same keys."""
    sides = []
    for shards, heads in ((case.q, case.work.heads), (case.kv, case.work.kv_heads)):
        held = [shard[shard >= 0] for shard in shards or ()]
        if not held or sum(map(len, held)) != len(np.unique(np.concatenate(held))):
            return None
        blocks = (
            Block(_ranges(np.sort(shard)), range(heads), rank) for rank, shard in enumerate(held)
        )
        sides.append(Side(tuple(blocks)))
    return Partition(*sides)


def _ranges(positions: Ints) -> tuple[range, ...]:
    """Returns ascending positions as a few ranges: one with a stride, or runs."""
    steps = np.diff(positions)
    if len(positions) > 1 and (steps == steps[0]).all():
        return (range(int(positions[0]), int(positions[-1]) + 1, int(steps[0])),)
    runs = np.split(positions, np.flatnonzero(steps != 1) + 1)
    return tuple(range(int(run[0]), int(run[-1]) + 1) for run in runs if len(run))


def _named(work: Workload, ranks: int, layout: str | Partition) -> tuple[Positions, Positions]:
    sides = by_tokens(work, ranks, own_name(layout))
    q, kv = (tuple(side.positions(r) for r in range(ranks)) for side in (sides.q, sides.kv))
    return q, kv


def _padded(shards: Positions) -> Positions:
    longest = max(map(len, shards))
    return tuple(np.pad(s, (0, longest - len(s)), constant_values=-1) for s in shards)


def _given(layout: Any, ranks: int) -> Positions:
    """Returns the positions of each rank, given for all tokens together or for each rank."""
    nested = isinstance(layout, Sequence) and bool(layout) and np.ndim(layout[0]) > 0
    try:
        shards = [np.asarray(one) for one in layout] if nested else [np.asarray(layout)]
        shards = [one.reshape(-1) if nested else np.squeeze(one) for one in shards]
    except (TypeError, ValueError):
        raise RingloomError(f"a layout must be a name or positions, not {brief(layout)}") from None
    if any(one.dtype.kind not in "iu" for one in shards):
        raise RingloomError(f"positions must be integers, not {brief(layout)}")
    whole = shards[0]
    if not nested and whole.ndim == 1:
        if len(whole) % ranks:
            raise RingloomError(
                f"{len(whole)} positions cannot be cut into equal shards for {ranks} ranks: give a"
                " list of positions for each rank"
            )
        shards = np.split(whole, ranks)
    elif not nested:
        shards = list(whole)
    if len(shards) != ranks or any(one.ndim != 1 for one in shards):
        raise RingloomError(f"a layout must list the positions of each of {ranks} ranks")
    return tuple(one.astype(np.int64) for one in shards)


def _array(path: Path) -> Any:
    return np.load(path, allow_pickle=False)
