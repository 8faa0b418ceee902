"""Refuses arrays that a program is not for."""

HEAD_DIM = 1


def check_shapes(q, k, v, heads, kv_heads, tokens, kv_tokens):
    """Raise ValueError unless q, k and v have these sizes and one type."""
    for name, x, sizes in (
        ("q", q, (heads, tokens)),
        ("k", k, (kv_heads, kv_tokens)),
        ("v", v, (kv_heads, kv_tokens)),
    ):
        shape = q.shape[0], *sizes, HEAD_DIM
        if x.shape != shape or x.dtype != q.dtype:
            raise ValueError(f"{name} is {x.dtype}{[*x.shape]}, not {q.dtype}{[*shape]}")
