"""Attention of a rectangle by its definition: for scales that fused kernels cannot take.

They mask before they scale, so a scale of 0 or below turns what is hidden into what is seen.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from codegen.torch.parts.merge import wide

SCALE = 1.0

# ---- Kernels: attention that returns, and takes back, the log-sum-exp of its scores.


def attend(q: Tensor, k: Tensor, v: Tensor, band: bool | Sequence[int]) -> tuple[Tensor, Tensor]:
    """Attention of some queries to some keys: output, and log-sum-exp [batch, heads, rows, 1]."""
    q, k, v = per_kv_head(k, q, k, v)
    scores = scores_of(q, k, band)
    lse = scores.logsumexp(-1, keepdim=True)
    return ((scores - lse).exp() @ v).flatten(1, 2), lse.flatten(1, 2)


def attend_backward(
    dout: Tensor,
    q: Tensor,
    out: Tensor,
    lse: Tensor,
    k: Tensor,
    v: Tensor,
    band: bool | Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:
    """The share of these keys in dq, and of these queries in dk and dv; out and lse are final."""
    dout, q, out, lse, k, v = per_kv_head(k, dout, q, out, lse, k, v)
    weights = (scores_of(q, k, band) - lse).exp()
    slopes = weights * (dout @ v.mT - (dout * out).sum(-1, keepdim=True)) * SCALE
    dk, dv = (slopes.mT @ q).sum(2), (weights.mT @ dout).sum(2)
    return (slopes @ k).flatten(1, 2), dk, dv


def scores_of(q: Tensor, k: Tensor, band: bool | Sequence[int]) -> Tensor:
    """Scores, -inf where a row does not see a column."""
    row, col = (torch.arange(x.shape[-2], device=q.device) for x in (q, k))
    lo, hi = (-len(row), len(col) * (not band)) if isinstance(band, bool) else band
    ahead = col - row[:, None]
    return (q @ k.mT * SCALE).masked_fill((ahead < lo) | (ahead > hi), -torch.inf)


def per_kv_head(k: Tensor, *tensors: Tensor) -> list[Tensor]:
    """[batch, KV heads, heads of each or 1, ...], in the type of partial results."""
    return [x.to(wide(x)).unflatten(1, (k.shape[1], -1)) for x in tensors]
