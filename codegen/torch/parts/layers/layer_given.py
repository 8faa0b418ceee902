"""The decoder layer of a program whose tables are an argument."""

from typing import Any

import torch
from torch import Tensor

from codegen.torch.parts.layers.layer import Params, layer_of, reference_layer, world
from codegen.torch.parts.tables.given import Tables, allowed, positions

KV_HEADS = 1
PLAN: dict[str, Any] = {}


def decoder_layer(params: Params, x: Tensor, tables: Tables, *, group: Any = None) -> Tensor:
    """A decoder layer on sharded sequences, differentiable in x and in the parameters.

    x: this rank's tokens [batch, len(positions(rank, tables)), dim]; the result is like x. All
    ranks of the group call it together, with the same parameters. A rank's gradients of the
    parameters are the share of its tokens: sum them over the group, as data parallelism does.
    """
    if not all(map(torch.equal, tables.shards["q"], tables.shards["kv"])):
        raise ValueError("a decoder layer needs queries and keys of a token on the same rank")
    return layer_of(params, x, (tables, world(group)))


def own_positions(x: Tensor, where: Any) -> Tensor:
    """The positions of this rank's tokens."""
    return positions(where[-1].rank(), where[0])


def named(where: Any) -> str:
    """The tables and the group as operators take them."""
    return f"{where[0].name} {where[1].group_name}"


def reference(params: Params, x: Tensor, tables: Tables) -> Tensor:
    """The layer by its definition on one device; x: all tokens in sequence order."""

    def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q.unflatten(1, (KV_HEADS, -1)) @ k[:, :, None].mT * PLAN["scale"]
        scores = scores.masked_fill(~allowed(torch.arange(len(x[0])), tables), -torch.inf)
        return (scores.softmax(-1).nan_to_num(0.0) @ v[:, :, None]).flatten(1, 2)

    return reference_layer(params, x, dense)
