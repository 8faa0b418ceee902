"""The decoder layer of a program that is bound to its plan, and the self-check that it has."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from codegen.torch.parts.checks.check import dense
from codegen.torch.parts.layers.layer import (
    Params,
    init,
    layer_of,
    leaf,
    names,
    reference_layer,
    world,
)
from codegen.torch.parts.stubs import positions

RANKS = SEQ = 1


def decoder_layer(params: Params, x: Tensor, *, group: Any = None) -> Tensor:
    """A decoder layer on sharded sequences, differentiable in x and in the parameters.

    x: this rank's tokens [batch, len(positions(rank)), dim]; the result is like x. All ranks of
    the group call it together, with the same parameters. A rank's gradients of the parameters are
    the share of its tokens: sum them over the group, as data parallelism does.
    """
    return layer_of(params, x, (world(group),))


def own_positions(x: Tensor, where: Any) -> Tensor:
    """The positions of this rank's tokens."""
    tokens = x.shape[1] * RANKS  # free
    tokens = SEQ  # fixed
    return positions(where[-1].rank(), tokens)


def named(where: Any) -> str:
    """The group as operators take it."""
    name: str = where[-1].group_name
    return name


# ---- Self-check: every rank compares its tokens with the layer on one device, in float64.


def reference(params: Params, x: Tensor) -> Tensor:
    """The layer by its definition on one device; x: all tokens in sequence order."""

    def attend_all(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = torch.arange(k.shape[2]).split(256)
        return torch.cat([dense(q, k, v, rows) for rows in parts], 2)

    return reference_layer(params, x, attend_all)


def compared(seq: int, kind: tuple[Any, ...]) -> list[tuple[Tensor, Tensor]]:
    """The output, dx and the gradients of the parameters, each beside that of the reference."""
    random, params = torch.Generator().manual_seed(0), init(0, kind[1], kind[0], dim=64, hidden=96)
    x, dy = (torch.randn(1, seq, 64, generator=random).to(*kind) for _ in range(2))
    at = positions(dist.get_rank(), seq).to(x.device)
    ours, exact = leaf(x[:, at]), {name: leaf(params[name].double()) for name in names}
    y, whole = decoder_layer(params, ours), leaf(x.double())
    y.backward(dy[:, at])
    wanted = reference(exact, whole)
    wanted.backward(dy.double())
    pairs = [(y, wanted[:, at]), (ours.grad, whole.grad[:, at])]
    for name in names:
        dist.all_reduce(total := params[name].grad.double())
        unit = exact[name].grad.abs().max().clamp_min(1)
        pairs.append((total / unit, exact[name].grad / unit))
    return pairs
