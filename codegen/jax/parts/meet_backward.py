"""Queries that meet keys in the backward pass: gradients grow by a rectangle at a time."""

from codegen.jax.parts.kernels import attend_backward


def meet_backward(dq, dkv, queries, kv, rows=slice(None), cols=slice(None), causal=False):
    """Gradients of queries, and of keys and values, with those of one more rectangle."""
    q, dout, out, lse = (x[:, :, rows] for x in queries)
    k, v = (x[:, :, cols] for x in kv)
    dq_part, *dkv_part = attend_backward(dout, q, k, v, out, lse, causal)
    dkv = tuple(x.at[:, :, cols].add(part) for x, part in zip(dkv, dkv_part, strict=True))
    return dq.at[:, :, rows].add(dq_part), dkv
