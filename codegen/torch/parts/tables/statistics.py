"""Gives the backward pass its share of OUT: STATS = (lse, rowsum(dout * out)) travels."""

from typing import Any

from torch import Tensor

from codegen.torch.parts.visitors import with_output


def copied(memory: Any, place: tuple[str, int]) -> Any:
    """A value that a message copies; STATS are computed where OUT is."""
    tensor, number = place
    if tensor != "STATS" or ("OUT", number) not in memory:
        return memory[place]
    (dout,), (out, lse) = memory["DOUT", number], memory["OUT", number]
    return lse, (dout.to(lse.dtype) * out.to(lse.dtype)).sum(dim=-1, keepdim=True)


def outputs(memory: Any, number: int) -> tuple[Tensor, Tensor]:
    """(out, lse) of a block of queries, out being a stand-in where only STATS came."""
    if ("OUT", number) in memory:
        out, lse = memory["OUT", number]
        return out, lse
    (dout,), (lse, delta) = memory["DOUT", number], memory["STATS", number]
    return with_output([dout, dout, lse, delta])[2:]
