"""The shapes that shards must have."""

from torch import Tensor

HEAD_DIM, PIECES = 1, 1


def expected(q: Tensor, k: Tensor, rank: int) -> tuple[int, int, int, int]:
    raise NotImplementedError


def check_shards(q: Tensor, k: Tensor, v: Tensor, rank: int) -> None:
    """Raise ValueError unless these are the shards of a rank."""
    heads, kv_heads, tokens, kv_tokens = expected(q, k, rank)
    if heads % kv_heads or tokens % PIECES:
        raise ValueError(
            f"{tokens} tokens and {heads} heads on {kv_heads}: shards have a multiple of {PIECES} "
            "tokens, and KV heads divide the heads"
        )
    for name, x, *shape in (("q", q, heads, tokens), ("k", k, kv_heads, kv_tokens), ("v", v, kv_heads, kv_tokens)):
        wanted = [q.shape[0], *shape, HEAD_DIM]
        if [*x.shape] != wanted or x.dtype != q.dtype:
            raise ValueError(f"{name} is {x.dtype} {[*x.shape]}, not {q.dtype} {wanted}")
