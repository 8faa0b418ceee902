"""The shapes of shards where any length and any heads go."""

from torch import Tensor

HEAD_DIM, PIECES = 1, 1


def check_shards(q: Tensor, k: Tensor, v: Tensor, rank: int) -> None:
    """Raise ValueError unless these are shards that belong together."""
    tokens = q.shape[2]
    if not tokens or tokens % PIECES or q.shape[1] % k.shape[1]:
        raise ValueError(
            f"q is {list(q.shape)}, k {list(k.shape)}: {PIECES} must divide the tokens of a shard, "
            "the heads of k those of q"
        )
    for name, x, heads in (("q", q, q.shape[1]), ("k", k, k.shape[1]), ("v", v, k.shape[1])):
        shape = q.shape[0], heads, tokens, HEAD_DIM
        if x.shape != shape or x.dtype != q.dtype:
            raise ValueError(f"{name} is {x.dtype} {list(x.shape)}, not {q.dtype} {list(shape)}")
