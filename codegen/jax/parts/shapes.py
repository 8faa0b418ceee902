"""The shapes that a program accepts."""

from ringloom.codegen.jax.parts.stubs import kv_positions, positions

RANKS = HEADS = KV_HEADS = HEAD_DIM = MULTIPLE = LEAST = 1
ANY_HEADS = ANY_LENGTH = APART = True

# ---- The function to call


def shapes(q, k, shards):
    """Return the valid shapes of q and k nearest to theirs, with heads over `shards` devices."""
    if ANY_HEADS:
        kv_heads = max(1, k.shape[1] // shards) * shards
        heads = max(1, q.shape[1] // kv_heads) * kv_heads
    else:
        heads, kv_heads = HEADS * shards, KV_HEADS * shards
    if ANY_LENGTH:
        tokens = max(LEAST, q.shape[2]) // MULTIPLE * MULTIPLE
    else:
        tokens = RANKS * len(positions(0))
    kv_tokens = RANKS * len(kv_positions(0)) if APART else tokens
    return (len(q), heads, tokens, HEAD_DIM), (len(q), kv_heads, kv_tokens, HEAD_DIM)
