"""layers   the decoder layers of both targets: their names, their widths, plans without one."""

from contextlib import suppress
from itertools import pairwise

import numpy as np

from codegen.programs import Program
from planner.errors import PlanError
from planner.masks.areas import areas
from planner.masks.mask import Mask, Pair

KEEP = ("init", "decoder_layer", "reference")


def widths(program: Program) -> str:
    """A line of the widths: 8/3 of the model's, up to a multiple of 256, or of 16 in small ones."""
    dim = program.work.heads * program.work.head_dim
    step = 256 if dim >= 1024 else 16
    hidden = -(-8 * dim // (3 * step)) * step
    return f"DIM, HIDDEN = {dim}, {hidden}  # widths of the model and of its network"


def refuse(program: Program) -> None:
    """Raise PlanError for a plan that no layer can be made of."""
    work, sides = program.work, program.forward.partition
    if program.backward is None:
        raise PlanError("a decoder layer needs a backward plan too: give a pair, or --pass both")
    if work.seq != work.kv_seq:
        raise PlanError(
            f"a decoder layer attends to its own tokens: {work.seq} queries, {work.kv_seq} keys"
        )
    if not all(map(np.array_equal, *(x.shards(program.ranks) for x in (sides.q, sides.kv)))):
        raise PlanError("a decoder layer needs queries and keys of a token on the same rank")
    if work.head_dim % 2:
        raise PlanError(f"rotary embedding needs an even head_dim, not {work.head_dim}")
    if not in_place(work.mask, work.kv_seq):
        raise PlanError(
            "a decoder layer rotates by places in the sequence, but tokens count otherwise under"
            f" {work.mask!s:.80}: take an ordinary program, and rl.document_positions"
        )


def in_place(mask: Mask, seq: int) -> bool:
    """True if queries are as far from the keys that they see as in the sequence.

    Those of a tree are not, where other branches stand between a node and the one above it. Each
    mask of several is asked for itself.
    """
    if isinstance(mask, Pair):
        return in_place(mask.left, seq) and in_place(mask.right, seq)
    with suppress(PlanError):  # a mask without a document for every token
        q, kv = (mask.origins(side) for side in ("q", "kv"))
        if q and kv:
            spans = [[(range(*x),) for x in pairwise([*b, seq])] for b, _ in (q, kv)]
            met = areas(mask.region(), *spans) > 0
            return not (met & (q[1][:, None] != kv[1])).any()
    return True
