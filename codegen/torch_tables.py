"""torch_tables   Program -> the plain arrays that a dynamic torch program takes as its tables.

    sizes             format, passes, ranks, seq, kv_seq, heads, kv_heads, head_dim
    scale             what scores are multiplied by
    mask              [n, 6]  boxes i0 <= i < i1, j0 <= j < j1, low <= j - i <= high
    q_pieces          [n, 4]  piece, first position, one past the last, step
    q_homes           [n]     the rank of each piece; kv_pieces and kv_homes: the same of keys
    q_slices          [n, 2]  first head of each slice, one past the last; kv_slices: of KV heads
    forward_rows      [n, 7]  node, step, what, a, b, m, n
    forward_blocks    the blocks of those rows one after the other, m + n of each
    backward_rows, backward_blocks: the same; no rows where there is no backward plan

What a row says: `what` is 0 where rank a attends its m query blocks to its n KV blocks. Otherwise
it is the sum of 2 ** (1 + index in TENSORS) over the tensors of a message of m blocks from a to b,
or, where b is -1, of copies that rank a holds from the start.
"""

import numpy as np
from numpy.typing import NDArray

from codegen.program import Node, Pieces, Program, Schedule
from codegen.rows import Attend, Held, Move

FORMAT = 1
TENSORS = ("Q", "KV", "DOUT", "STATS", "OUT", "DQ", "DKV")
Tables = dict[str, NDArray[np.int64] | NDArray[np.float64]]


def tables(p: Program) -> Tables:
    """The tables of a lowered plan, or of a lowered (forward, backward) pair."""
    work, layout = p.work, p.layout
    sizes = (p.ranks, work.seq, work.kv_seq, work.heads, work.kv_heads, work.head_dim)
    found: Tables = {
        "sizes": np.array([FORMAT, len(p.passes), *sizes]),
        "scale": np.array(work.softmax_scale),
        "mask": np.asarray(p.mask.boxes, np.int64).reshape(-1, 6),
    }
    for side, pieces in (("q", layout.q), ("kv", layout.kv)):
        found[f"{side}_pieces"], found[f"{side}_homes"] = _layout(pieces)
    for side, slices in (("q", layout.q_slices), ("kv", layout.kv_slices)):
        found[f"{side}_slices"] = np.array([(s.start, s.stop) for s in slices])
    empty = Schedule(None, [], {})
    for name, schedule in (("forward", p.forward), ("backward", p.backward or empty)):
        found[f"{name}_rows"], found[f"{name}_blocks"] = _rows(schedule.nodes)
    return found


def _layout(pieces: Pieces) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    spans = [
        (number, part.start, part.stop, part.step)
        for number, (parts, _) in enumerate(pieces)
        for part in parts
        if part
    ]
    homes = np.array([home for _, home in pieces], np.int64)
    return np.array(spans, np.int64).reshape(-1, 4), homes


def _rows(nodes: list[Node]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows of all nodes, and their blocks one after the other."""
    rows, blocks = [np.zeros((0, 7), np.int64)], [np.zeros(0, np.int64)]
    for number, node in enumerate(nodes):
        match node:
            case Attend(step, a, q, kv):
                what, b, table, width = 0, np.full_like(a, -1), np.hstack([q, kv]), q.shape[1]
            case Move(step, tensors, table, a, b):
                what, width = _code(tensors), table.shape[1]
            case Held(tensors, table, a):
                step, what, b, width = 0, _code(tensors), np.full_like(a, -1), table.shape[1]
        some = table >= 0
        counts = [part.sum(axis=1) for part in (some[:, :width], some[:, width:])]
        same = [np.full_like(a, value) for value in (number, step, what)]
        rows.append(np.stack([*same, a, b, *counts], axis=1))
        blocks.append(table[some])
    return np.concatenate(rows), np.concatenate(blocks)


def _code(tensors: tuple[str, ...]) -> int:
    return sum(2 << TENSORS.index(tensor) for tensor in tensors)
