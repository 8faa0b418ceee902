"""Compares a model's position_ids with the positions of a rank's tokens.

In transformers, position_ids also define packed documents: a document begins where they restart,
and its tokens attend only to each other. So an error about wrong position_ids names one of these
causes:

    the rows of a batch are packed differently         a plan has one packing
    positions restart elsewhere than in the plan       the plan has other documents, or none
    the plan has documents, positions do not restart   the model would attend across documents
    anything else                                      tokens have another layout
"""

from dataclasses import dataclass

import numpy as np

from ringloom.planner.errors import RingloomError
from ringloom.runtimes.arrays import Array

MAX_NAMED = 8  # documents to name in a message


@dataclass(frozen=True)
class Shard:
    """The tokens of a rank according to a plan.

    positions: of the tokens, after the `cached` keys of a cache. starts: the position at which each
    token's document begins. total: the number of tokens in the sequence. mask: the plan's mask.
    model_mask: the model's mask within a document, "" for full.
    """

    rank: int
    ranks: int
    positions: Array
    starts: Array
    total: int
    cached: int
    mask: str
    model_mask: str


def check_positions(position_ids: Array, shard: Shard, any_mask: bool) -> None:
    """Raises RingloomError unless position_ids [..., tokens] are those of the shard.

    They must count from the first token of each of the plan's documents; with `any_mask` they may
    also count from the first token of the sequence.
    """
    expected = shard.positions - shard.starts
    if position_ids.shape[-1] != len(expected):
        raise RingloomError(
            f"rank {shard.rank} has {position_ids.shape[-1]} position_ids"
            f" for {len(expected)} tokens"
        )
    if (position_ids == expected).all() or (any_mask and (position_ids == shard.positions).all()):
        return
    cause = cause_of(position_ids.reshape(-1, len(expected)), expected, shard)
    raise RingloomError(f"position_ids of rank {shard.rank} {cause}")


def cause_of(rows: Array, expected: Array, shard: Shard) -> str:
    """Returns how position_ids of a batch differ from the expected ones, with a remedy."""
    row, differing = rows[0], np.flatnonzero((rows != rows[0]).any(axis=0))
    if len(differing):
        n = int(differing[0])
        other_row = int(np.flatnonzero(rows[:, n] != row[n])[0])
        return (
            f"differ from row to row: entry {n} is {row[n]} in row 0 and {rows[other_row, n]} in"
            f" row {other_row}, but all rows have the same mask: call the model for rows of one"
            " packing"
        )
    n = int(np.flatnonzero(row != expected)[0])
    entry = f"entry {n} is {row[n]}, but the token is at {shard.positions[n]}"
    layout = (
        "have another layout than the plan: shard both tokens and positions with"
        " ringloom.shard_batch"
    )
    if (starts := starts_of(row, shard)) is not None:
        model = (
            f"the model's mask is {mask_name(starts, shard)}, but the plan's is {shard.mask}: emit"
            " a program for the model's mask, or one with --dynamic"
        )
        if restarts(row, shard):
            return f"restart: {entry}; so {model}"
        return f"are not those of its tokens: {entry}. Either {model}. Or they {layout}"
    if (row == shard.positions).all():
        return (
            f"do not restart at the documents of the plan, whose mask is {shard.mask}:"
            f" {entry}, and its document begins at {shard.starts[n]}; so the model would attend"
            " across documents: count positions from the first token of each document, or accept"
            " the plan's mask with any_mask=True"
        )
    if shard.cached and (row == expected - shard.cached).all():
        return f"do not count the keys of the cache: {entry}; add {shard.cached}"
    return f"{layout}: {entry}"


def restarts(row: Array, shard: Shard) -> bool:
    """Returns True if a document begins after the first token of the sequence."""
    ordered = row[np.argsort(shard.positions)]
    return bool((np.diff(ordered) <= 0).any() or (ordered[0] == 0 < shard.positions.min()))


def starts_of(row: Array, shard: Shard) -> Array | None:
    """Returns the positions at which the documents of the shard's tokens begin.

    Returns None if no documents give these positions, or if all documents begin at 0.
    """
    order = np.argsort(shard.positions)
    positions, starts = shard.positions[order], (shard.positions - row)[order]
    is_new = np.diff(starts) != 0
    # each document begins after the tokens of the previous document
    in_order = (starts[1:][is_new] > positions[:-1][is_new]).all()
    possible = starts.min() >= 0 and (starts <= positions).all() and in_order
    return np.unique(starts) if possible and starts.any() and not shard.cached else None


def mask_name(starts: Array, shard: Shard) -> str:
    """Returns the model's mask in quotes, with documents that begin at `starts`."""
    lengths = np.diff([0, *starts[starts > 0], shard.total])
    listed = ",".join(map(str, lengths[:MAX_NAMED])) + ",..." * (len(lengths) > MAX_NAMED)
    scope = f" as far as rank {shard.rank} has their tokens" * (shard.ranks > 1)
    return f"'{shard.model_mask}{' & ' * bool(shard.model_mask)}documents:{listed}'{scope}"


def refuse_unsharded(position_ids: Array, rank: int, ranks: int) -> None:
    """Raises RingloomError if position_ids [..., tokens] are those of a whole sequence."""
    steps, first = np.diff(position_ids), position_ids[..., 0]
    if (first == 0).all() and ((steps == 1) | (position_ids[..., 1:] == 0)).all():
        raise RingloomError(
            f"rank {rank} has all {position_ids.shape[-1]} tokens of the sequence, but each of"
            f" {ranks} ranks must have its own shard: call the model with the batch that"
            " ringloom.shard_batch returns"
        )
