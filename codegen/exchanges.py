"""exchanges   steps whose messages together are a collective that everybody knows."""

from collections import defaultdict

import numpy as np

from codegen.rows import Attend, Held, Move

Node = Attend | Move | Held


def exchanges(nodes: list[Node], ranks: int) -> dict[int, str]:
    """Step -> "all-gather" where every rank sends everybody else the same blocks, "all-to-all"
    where everybody sends everybody else something; other steps are left out."""
    by_step = defaultdict[int, list[Move]](list)
    for node in nodes:
        if isinstance(node, Move):
            by_step[node.step].append(node)
    found = {step: _kind(moves, ranks) for step, moves in by_step.items() if ranks > 2}
    return {step: kind for step, kind in found.items() if kind}


def _kind(moves: list[Move], ranks: int) -> str:
    tensors = {move.tensors for move in moves}
    kinds = set()
    for names in tensors:
        mine = [move for move in moves if move.tensors == names]
        if sum(len(move.src) for move in mine) != ranks * (ranks - 1):
            return ""
        pairs = np.concatenate([move.src * ranks + move.dst for move in mine])
        if np.bincount(pairs).max() > 1:
            return ""
        kinds.add("all-gather" if _broadcast(mine, ranks) else "all-to-all")
    return kinds.pop() if len(kinds) == 1 else ""


def _broadcast(moves: list[Move], ranks: int) -> bool:
    """Whether a rank's messages all carry the same blocks."""
    if len({move.blocks.shape[1] for move in moves}) > 1:
        return False
    sent = np.full((ranks, moves[0].blocks.shape[1]), -2)
    for move in moves:
        old = sent[move.src]
        if not ((old == -2) | (old == move.blocks)).all():
            return False
        sent[move.src] = move.blocks
    return True
