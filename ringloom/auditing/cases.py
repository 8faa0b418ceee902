"""Builds the case of an audit from a layout: a name, arrays of positions, or "detect"."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ringloom.planner.disk import read
from ringloom.planner.errors import RingloomError, brief
from ringloom.planner.layouts import BY_MASK, LAYOUTS, PEER_NAMES, by_tokens, canonical_layout
from ringloom.planner.layouts.peers import ALIASES
from ringloom.planner.partitions import Block, Partition, Side
from ringloom.planner.workload import Workload, check_request
from ringloom.runtimes.audit.case import Case, Ints, Positions

DETECT = "detect"
MAX_FILE = 1 << 26  # bytes of a file of positions


def case_of(
    work: Workload,
    ranks: int,
    layout: Any = "contiguous",
    *,
    passes: str = "both",
    seed: int = 0,
    equal: bool = False,
) -> Case:
    """Returns the case of an audit.

    layout: a layout name; "detect"; a partition; the positions of all tokens in layout order, which
    are cut into equal shards; the positions of each rank, -1 for padding; or a dictionary with the
    keys `q` and `kv`, each a layout of positions. `equal`: pad shards of a named layout to the same
    length. Raises RingloomError for anything else.
    """
    check_request(work, ranks, "audit(attend, work, ranks=ranks)")
    if isinstance(layout, str) and layout == DETECT:
        return Case(work, ranks, passes=passes, seed=seed)
    if isinstance(layout, str | Partition):
        q, kv = _positions_of(work, ranks, layout)
        q, kv = (_pad(q), _pad(kv)) if equal else (q, kv)
    elif isinstance(layout, dict):
        if {*layout} != {"q", "kv"}:
            raise RingloomError(
                f"a layout dictionary needs the keys q and kv, not {brief([*layout])}"
            )
        q, kv = (_parse_positions(layout[side], ranks) for side in ("q", "kv"))
    else:
        if work.seq != work.kv_seq:
            raise RingloomError("queries and keys differ in number: give layouts for q and kv")
        q = kv = _parse_positions(layout, ranks)
    return Case(work, ranks, q, kv, passes=passes, seed=seed)


def layout_of(text: str) -> Any:
    """Returns the layout of --layout: a layout name, or the content of a file.

    A .npy file contains one array. A .json file contains a list of positions, a list per rank, or
    an object with the keys q and kv. Raises RingloomError for anything else.
    """
    path = Path(text)
    if path.suffix == ".npy":
        return read(path, lambda _: np.load(path, allow_pickle=False), text, MAX_FILE)
    if path.suffix == ".json":
        return read(path, json.loads, text, MAX_FILE)
    if text != DETECT and canonical_layout(text) not in {*LAYOUTS, *BY_MASK}:
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
        positions = [shard[shard >= 0] for shard in shards or ()]
        if not positions or sum(map(len, positions)) != len(np.unique(np.concatenate(positions))):
            return None
        blocks = (
            Block(_ranges(np.sort(own)), range(heads), rank) for rank, own in enumerate(positions)
        )
        sides.append(Side(tuple(blocks)))
    return Partition(*sides)


def _ranges(positions: Ints) -> tuple[range, ...]:
    """Returns ascending positions as one range with a stride, or as ranges of consecutive runs."""
    steps = np.diff(positions)
    if len(positions) > 1 and (steps == steps[0]).all():
        return (range(int(positions[0]), int(positions[-1]) + 1, int(steps[0])),)
    runs = np.split(positions, np.flatnonzero(steps != 1) + 1)
    return tuple(range(int(run[0]), int(run[-1]) + 1) for run in runs if len(run))


def _positions_of(
    work: Workload, ranks: int, layout: str | Partition
) -> tuple[Positions, Positions]:
    """Returns the query and key positions of each rank in a layout."""
    partition = by_tokens(work, ranks, canonical_layout(layout))
    sides = partition.q, partition.kv
    q, kv = (tuple(side.positions(r) for r in range(ranks)) for side in sides)
    return q, kv


def _pad(shards: Positions) -> Positions:
    """Pads the positions of all ranks to the same length with -1."""
    longest = max(map(len, shards))
    return tuple(np.pad(s, (0, longest - len(s)), constant_values=-1) for s in shards)


def _parse_positions(layout: Any, ranks: int) -> Positions:
    """Returns the positions of each rank from one list of all positions or a list per rank."""
    is_nested = isinstance(layout, Sequence) and bool(layout) and np.ndim(layout[0]) > 0
    try:
        shards = [np.asarray(shard) for shard in layout] if is_nested else [np.asarray(layout)]
        shards = [shard.reshape(-1) if is_nested else np.squeeze(shard) for shard in shards]
    except (TypeError, ValueError):
        raise RingloomError(f"a layout must be a name or positions, not {brief(layout)}") from None
    if any(shard.dtype.kind not in "iu" for shard in shards):
        raise RingloomError(f"positions must be integers, not {brief(layout)}")
    positions = shards[0]
    if not is_nested and positions.ndim == 1:
        if len(positions) % ranks:
            raise RingloomError(
                f"{len(positions)} positions cannot be cut into equal shards for {ranks} ranks:"
                " give a list of positions for each rank"
            )
        shards = np.split(positions, ranks)
    elif not is_nested:
        shards = list(positions)
    if len(shards) != ranks or any(shard.ndim != 1 for shard in shards):
        raise RingloomError(f"a layout must list the positions of each of {ranks} ranks")
    return tuple(shard.astype(np.int64) for shard in shards)
