"""The shapes that a program accepts."""

from torch import Tensor

from ringloom.codegen.torch.parts.stubs import kv_positions, positions

RANKS = HEADS = KV_HEADS = HEAD_DIM = V_HEAD_DIM = MULTIPLE = LEAST = 1
ANY_HEADS = ANY_LENGTH = APART = True

# ---- The function to call.


def shapes(q: Tensor, k: Tensor, rank: int) -> list[tuple[int, ...]]:
    """Return the valid shapes of q, k and v on a rank that are nearest to the shapes of these."""
    heads, kv_heads = (q.shape[1], k.shape[1]) if ANY_HEADS else (HEADS, KV_HEADS)
    if ANY_LENGTH:
        tokens = max(LEAST, RANKS * q.shape[2]) // MULTIPLE * MULTIPLE // RANKS
    else:
        tokens = len(positions(rank))
    kv = len(q), kv_heads, len(kv_positions(rank)) if APART else tokens
    return [(len(q), heads, tokens, HEAD_DIM), (*kv, HEAD_DIM), (*kv, V_HEAD_DIM)]
