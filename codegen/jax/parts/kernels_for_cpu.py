"""Attention of one tile in a program for CPUs only."""

from codegen.jax.parts.kernels_cpu import attend_backward_cpu, attend_cpu

# ---- Kernels: blocks of scores that stay in a cache.


def attend(q, k, v, causal):
    """Output and log-sum-exp, wide, of queries over keys; causal: query n sees keys 0..n."""
    return attend_cpu(causal, q, k, v)


def attend_backward(dout, q, k, v, out, lse, causal):
    """The share of these pairs in dq, dk and dv, given out and lse over all keys of the queries."""
    return attend_backward_cpu(causal, q, k, v, out, lse, dout)
