"""Queries that meet keys under a mask that is asked for positions, in the backward pass."""

from typing import TYPE_CHECKING

from codegen.jax.parts.masked import attend_masked_backward

if TYPE_CHECKING:
    from codegen.jax.parts.stubs import allowed


def meet_masked_backward(dq, dkv, queries, kv, at, kv_at, rows=slice(None), cols=slice(None)):
    """`meet_backward` for queries and keys at these positions."""
    q, dout, out, lse = (x[:, :, rows] for x in queries)
    k, v = (x[:, :, cols] for x in kv)
    dq_part, *part = attend_masked_backward(dout, q, k, v, out, lse, at[rows], kv_at[cols], allowed)
    dkv = tuple(x.at[:, :, cols].add(more) for x, more in zip(dkv, part, strict=True))
    return dq.at[:, :, rows].add(dq_part), dkv
