"""Compares a model's position_ids with the positions of a rank's tokens.

In transformers position_ids also define packed documents: a document begins where they restart, and
its tokens attend only to each other. So an error about different position_ids names the cause:

    the rows of a batch are packed differently         a plan has one packing
    positions restart elsewhere than in the plan       the plan has other documents, or none
    the plan has documents, positions do not restart   the model would attend across documents
    anything else                                      tokens have another layout
"""

from dataclasses import dataclass

import numpy as np

from ringloom.planner.errors import RingloomError
from ringloom.runtimes.arrays import Array

MANY = 8  # documents to name in a message


@dataclass(frozen=True)
class Shard:
    """The tokens of a rank according to a plan.

    at: their positions, which follow the `cached` keys of a cache. starts: where the document of
    each token begins. whole: the tokens of the sequence. mask: the plan's mask. model: the model's
    mask within a document, "" for full.
    """

    rank: int
    ranks: int
    at: Array
    starts: Array
    whole: int
    cached: int
    mask: str
    model: str


def refuse_other(given: Array, shard: Shard, any_mask: bool) -> None:
    """Raises RingloomError unless position_ids [..., tokens] are those of the shard.

    They must count from the first token of each of the plan's documents; with `any_mask` they may
    also count from the first token of the sequence.
    """
    right = shard.at - shard.starts
    if given.shape[-1] != len(right):
        raise RingloomError(
            f"rank {shard.rank} has {given.shape[-1]} position_ids for {len(right)} tokens"
        )
    if (given == right).all() or (any_mask and (given == shard.at).all()):
        return
    cause = cause_of(given.reshape(-1, len(right)), right, shard)
    raise RingloomError(f"position_ids of rank {shard.rank} {cause}")


def cause_of(rows: Array, right: Array, shard: Shard) -> str:
    """Returns how position_ids differ from the right ones in a batch, with a remedy."""
    row, differing = rows[0], np.flatnonzero((rows != rows[0]).any(axis=0))
    if len(differing):
        n = int(differing[0])
        other = int(np.flatnonzero(rows[:, n] != row[n])[0])
        return (
            f"differ from row to row: entry {n} is {row[n]} in row 0 and {rows[other, n]} in row"
            f" {other}, but one mask holds for all rows: call the model for rows of one packing"
        )
    n = int(np.flatnonzero(row != right)[0])
    where = f"entry {n} is {row[n]}, but the token is at {shard.at[n]}"
    layout = (
        "are of another layout than the plan's: shard tokens and positions alike, by"
        " ringloom.shard_batch"
    )
    if (starts := starts_of(row, shard)) is not None:
        model = (
            f"the model's mask is {documents(starts, shard)}, but the plan's is {shard.mask}: emit"
            " a program for the model's mask, or one with --dynamic"
        )
        if begins_again(row, shard):
            return f"begin again: {where}; so {model}"
        return f"are not those of its tokens: {where}. Either {model}. Or they {layout}"
    if (row == shard.at).all():
        return (
            f"do not begin again with the documents of the plan, whose mask is {shard.mask}:"
            f" {where}, the first of its document at {shard.starts[n]}; so the model sees across"
            " documents: count positions from the first token of each, or take the plan's mask by"
            " any_mask=True"
        )
    if shard.cached and (row == right - shard.cached).all():
        return f"leave out the keys of the cache: {where}; add {shard.cached}"
    return f"{layout}: {where}"


def begins_again(row: Array, shard: Shard) -> bool:
    """Returns True if a document begins after the first token of the sequence."""
    in_turn = row[np.argsort(shard.at)]
    return bool((np.diff(in_turn) <= 0).any() or (in_turn[0] == 0 < shard.at.min()))


def starts_of(row: Array, shard: Shard) -> Array | None:
    """Returns where the documents of the shard's tokens begin, if not all of them at 0.

    Returns None if no documents give these positions.
    """
    order = np.argsort(shard.at)
    at, starts = shard.at[order], (shard.at - row)[order]
    new = np.diff(starts) != 0
    apart = (starts[1:][new] > at[:-1][new]).all()  # each begins after the tokens of the last one
    if shard.cached or starts.min() < 0 or (starts > at).any() or not apart or not starts.any():
        return None
    return np.unique(starts)


def documents(starts: Array, shard: Shard) -> str:
    """Returns the model's mask in quotes, with documents that begin at `starts`."""
    lengths = np.diff([0, *starts[starts > 0], shard.whole])
    named = ",".join(map(str, lengths[:MANY])) + ",..." * (len(lengths) > MANY)
    seen = f" as far as rank {shard.rank} has tokens of them" * (shard.ranks > 1)
    return f"'{shard.model}{' & ' * bool(shard.model)}documents:{named}'{seen}"


def refuse_unsharded(given: Array, rank: int, ranks: int) -> None:
    """Raises RingloomError if position_ids [..., tokens] are those of a whole sequence."""
    steps, first = np.diff(given), given[..., 0]
    if (first == 0).all() and ((steps == 1) | (given[..., 1:] == 0)).all():
        raise RingloomError(
            f"rank {rank} has all {given.shape[-1]} tokens of the sequence, but each of {ranks}"
            " ranks attends its own: call the model with what ringloom.shard_batch returns"
        )
