"""The shapes that shards must have."""

from torch import Tensor

HEAD_DIM, PIECES = 1, 1


def expected(q: Tensor, k: Tensor, rank: int) -> tuple[int, int, int, int]:
    raise NotImplementedError


def check_shards(q: Tensor, k: Tensor, v: Tensor, rank: int) -> None:
    """Raise ValueError unless these are the shards of a rank."""
    heads, kv_heads, tokens, kv_tokens = expected(q, k, rank)
    shapes, wanted = [[*x.shape] for x in (q, k, v)], [[len(q), heads, tokens, HEAD_DIM]]
    wanted += [[len(q), kv_heads, kv_tokens, HEAD_DIM]] * 2
    if shapes != wanted or not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q, k, v are {shapes}, not {wanted}, or not all {q.dtype}")
    if tokens % PIECES or heads % kv_heads:
        raise ValueError(f"{PIECES} must divide {tokens} tokens, and {kv_heads} {heads} heads")
