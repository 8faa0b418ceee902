"""The decoder layer of a program that is bound to its plan."""

from typing import Any

from torch import Tensor

from codegen.torch.parts.function import attend_shards
from codegen.torch.parts.gradients import shard_gradients
from codegen.torch.parts.layer import Params, layer_of, world


def decoder_layer(params: Params, x: Tensor, *, group: Any = None) -> Tensor:
    """A decoder layer on sharded sequences, differentiable in x and in the parameters.

    x: this rank's tokens [batch, len(positions(rank)), dim]; the result is like x. All ranks of
    the group call it together, with the same parameters. A rank's gradients of the parameters are
    the share of its tokens: sum them over the group, as data parallelism does.
    """
    return layer_of(params, x, (world(group),))


def attention_kept(q: Tensor, k: Tensor, v: Tensor, where: Any) -> list[Tensor]:
    """The output, and what the backward pass of attention needs besides."""
    out, lse = attend_shards(q, k, v, where[-1].group_name)
    return [out, lse]


def attention_gradients(dout: Tensor, inputs: Any, saved: Any, where: Any) -> Any:
    """Gradients of queries, keys and values."""
    return shard_gradients(dout, [*inputs, *saved], where[-1].group_name)
