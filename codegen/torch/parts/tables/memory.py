"""The memory of a rank that runs a table program: inputs and accumulators, block by block."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ringloom.codegen.torch.parts.merge import accum_dtype, merge
from ringloom.codegen.torch.parts.visitors import with_output
from ringloom.codegen.torch.parts.vocabulary.accumulation import add, zero_output, zeros
from ringloom.codegen.torch.parts.vocabulary.messages import wait

HEAD_DIM = V_HEAD_DIM = 1

sums = ("OUT", "DQ", "DKV")  # sending removes them; other tensors are copied
# Parts of a value: x has the width of keys, v that of values, 1 is one number per token and head.
forms = {"Q": "x", "DOUT": "v", "KV": "xv", "STATS": "11", "OUT": "v1", "DQ": "x", "DKV": "xv"}


class Memory(dict[tuple[str, int], list[Tensor]]):
    """The values on a rank by tensor and block number; at first, the blocks of its shards.

    `kept`: copies that the forward pass keeps for the backward pass.
    """

    def __init__(self, where: tuple[dict[str, Any], Any], **shards: list[Tensor]) -> None:
        super().__init__()
        (self.tables, self.group), self.shards = where, shards
        self.kept: list[tuple[str, int]] = [*map(tuple, self.tables["KEPT"][self.group.rank()])]
        self.pending: dict[tuple[str, int], Any] = {}  # messages with copies
        for tensor, shard in shards.items():
            for number, at in self.owned_blocks(tensor):
                self[tensor, number] = [x[at] for x in shard]

    def __getitem__(self, place: tuple[str, int]) -> list[Tensor]:
        """Return a value; if it is in transit, wait for it."""
        wait(self.pending.pop(place, None))
        return super().__getitem__(place)

    def drop(self, place: tuple[str, int]) -> None:
        """Drop a value, if there is one; if it is in transit, wait for it."""
        wait(self.pending.pop(place, None))
        self.pop(place, None)

    def blocks(self, tensor: str) -> Any:
        """Return the blocks of queries or keys, whichever a tensor has."""
        return self.tables["KEYS" if tensor in ("KV", "DKV") else "QUERIES"]

    def owned_blocks(self, tensor: str) -> Iterator[tuple[int, Any]]:
        """Yield the number of each block that this rank owns, and its index in the shard."""
        for number, (owner, *at) in enumerate(self.blocks(tensor)):
            if owner == self.group.rank():
                yield number, index(*at)

    def allocate(self, tensor: str, number: int, finished: bool = False) -> list[Tensor]:
        """Allocate the tensors of a value; finished sums have the dtype of the inputs."""
        like = self.shards["KV" if tensor in ("KV", "DKV") else "Q"][0]
        _, heads, rows = index(*self.blocks(tensor)[number][1:])
        shape = len(like), len(range(like.shape[1])[heads]), rows.stop - rows.start
        narrow = like.dtype if finished or tensor not in sums else accum_dtype(like)
        kinds = {"x": (HEAD_DIM, narrow), "v": (V_HEAD_DIM, narrow), "1": (1, accum_dtype(like))}
        parts = (kinds[part] for part in forms[tensor])
        return [like.new_empty((*shape, width), dtype=dtype) for width, dtype in parts]

    def take(self, tensor: str, number: int, finished: bool) -> list[Tensor]:
        """Return a value to send: a copy of an input, or a sum, which is removed here."""
        place, buffers = (tensor, number), self.allocate(tensor, number, finished)
        if tensor in sums:
            value = self.pop(place) if place in self else begin(tensor, buffers)
        else:
            value = self.statistics(number) if tensor == "STATS" else self[place]
        return [x.to(y.dtype).contiguous() for x, y in zip(value, buffers, strict=True)]

    def statistics(self, number: int) -> list[Tensor]:
        """Return the log-sum-exp of a block of queries and the row sums of dout * out."""
        if ("OUT", number) not in self:
            return self["STATS", number]
        (dout,), (out, lse) = self["DOUT", number], self["OUT", number]
        return [lse, (dout.to(lse.dtype) * out.to(lse.dtype)).sum(dim=-1, keepdim=True)]

    def queries(self, number: int) -> list[Tensor]:
        """Return (dout, q, out, lse) of a block of queries, of this rank or visiting."""
        inputs = [*self["DOUT", number], *self["Q", number]]
        if ("OUT", number) in self:
            return [*inputs, *self["OUT", number]]
        return [*with_output([*inputs, *self["STATS", number]])]

    def arrive(self, tensor: str, number: int, message: Any) -> None:
        """Receive a message: add a sum now, but wait for a copy only when it is read."""
        place = tensor, number
        if tensor in sums:
            self.add(tensor, number, wait(message))
        else:
            self.drop(place)
            self[place], self.pending[place] = message.received(), message

    def add(self, tensor: str, number: int, value: list[Tensor]) -> None:
        """Add a value to a sum; the first value starts the sum."""
        place = tensor, number
        if place not in self:
            self[place] = value
        elif tensor == "OUT":
            merge(*self[place], *value)
        else:
            add(self[place], value)

    def add_joined(self, tensor: str, numbers: list[int], joined: list[Tensor]) -> None:
        """Add values, joined along the tokens, to the sums of several blocks."""
        ends = [self.blocks(tensor)[number][1] for number in numbers]
        parts = [x.split([end - first for first, end in ends], dim=2) for x in joined]
        for number, *value in zip(numbers, *parts, strict=True):
            self.add(tensor, number, value)

    def collect(self, tensor: str) -> list[Tensor]:
        """Return the sums of this rank's blocks as a shard; zero where nothing was added."""
        shard = begin(tensor, self.shards["KV" if tensor == "DKV" else "Q"])
        for number, at in self.owned_blocks(tensor):
            for x, part in zip(shard, self.get((tensor, number), ()), strict=False):
                x[at] = part
        return shard


def begin(tensor: str, likes: list[Tensor]) -> list[Tensor]:
    """Return zero accumulators shaped like some tensors."""
    return zero_output(likes) if tensor == "OUT" else zeros(likes)


def join_blocks(values: list[list[Tensor]]) -> list[Tensor]:
    """Concatenate the values of several blocks."""
    if len(values) == 1:
        return values[0]
    return [torch.cat(parts, dim=2) for parts in zip(*values, strict=True)]


def index(rows: Any = (), heads: Any = ()) -> tuple[slice, ...]:
    """Return the index of some rows and heads; by default, of all."""
    return slice(None), *(slice(*ends) if ends else slice(None) for ends in (heads, rows))
