"""Dense attention by its definition: what a program's self-check compares with."""

import torch
from torch import Tensor

SEQ = KV_SEQ = 1
SCALE = 1.0


def allowed(i: Tensor, j: Tensor) -> Tensor:
    raise NotImplementedError


# ---- Self-check: every rank computes dense attention of its own rows, in float64.


def dense(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, rows: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The output of some queries, and the gradients that they give themselves, k and v."""
    shared = k.shape[1], q.shape[1] // k.shape[1]
    outs, dqs = [q[:, :, :0]], [q[:, :, :0]]
    totals = torch.zeros_like(k), torch.zeros_like(v)
    k, v, j = k[:, :, None], v[:, :, None], torch.arange(k.shape[2])[None]
    for i in rows.split(64):
        qs, douts = (x[:, :, i].unflatten(1, shared) for x in (q, dout))
        seen = allowed(i[:, None] + (KV_SEQ - SEQ), j)
        scores = (qs @ k.mT * SCALE).masked_fill(~seen, -torch.inf)
        weights = scores.softmax(-1).nan_to_num(0.0)
        out = weights @ v
        slope = weights * (douts @ v.mT - (douts * out).sum(-1, keepdim=True)) * SCALE
        outs.append(out.flatten(1, 2))
        dqs.append((slope @ k).flatten(1, 2))
        totals[0].add_((slope.mT @ qs).sum(2))
        totals[1].add_((weights.mT @ douts).sum(2))
    return torch.cat(outs, 2), torch.cat(dqs, 2), *totals
