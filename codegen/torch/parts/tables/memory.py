"""The memory of a rank that runs a plan by tables: inputs and accumulators, block by block."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ringloom.codegen.torch.parts.merge import merge, wide
from ringloom.codegen.torch.parts.visitors import with_output
from ringloom.codegen.torch.parts.vocabulary.accumulation import add, zero_output, zeros
from ringloom.codegen.torch.parts.vocabulary.messages import wait

HEAD_DIM = V_HEAD_DIM = 1

sums = ("OUT", "DQ", "DKV")  # moved whole; the other tensors are copied
# What a value consists of, x: as wide as a key, v: as a value, 1: one number per token and head.
forms = {"Q": "x", "DOUT": "v", "KV": "xv", "STATS": "11", "OUT": "v1", "DQ": "x", "DKV": "xv"}


class Memory(dict[tuple[str, int], list[Tensor]]):
    """The values that a rank has, by tensor and number of the block: at first those of its shards.

    `kept`: what the forward pass leaves here for the backward pass.
    """

    def __init__(self, where: tuple[dict[str, Any], Any], **shards: list[Tensor]) -> None:
        super().__init__()
        (self.tables, self.group), self.shards = where, shards
        self.kept: list[tuple[str, int]] = [*map(tuple, self.tables["KEPT"][self.group.rank()])]
        self.coming: dict[tuple[str, int], Any] = {}  # messages that bring copies
        for tensor, shard in shards.items():
            for number, at in self.own(tensor):
                self[tensor, number] = [x[at] for x in shard]

    def __getitem__(self, place: tuple[str, int]) -> list[Tensor]:
        """A value, once it is here."""
        wait(self.coming.pop(place, None))
        return super().__getitem__(place)

    def drop(self, place: tuple[str, int]) -> None:
        """Let a value go, once it is here, if it ever was."""
        wait(self.coming.pop(place, None))
        self.pop(place, None)

    def blocks(self, tensor: str) -> Any:
        """The blocks of the side of a tensor."""
        return self.tables["KEYS" if tensor in ("KV", "DKV") else "QUERIES"]

    def own(self, tensor: str) -> Iterator[tuple[int, Any]]:
        """The blocks of this rank, and where they are in its shard."""
        for number, (owner, *at) in enumerate(self.blocks(tensor)):
            if owner == self.group.rank():
                yield number, index(*at)

    def room(self, tensor: str, number: int, finished: bool = False) -> list[Tensor]:
        """Room for a value; sums to which nothing will be added are in the type of the inputs."""
        like = self.shards["KV" if tensor in ("KV", "DKV") else "Q"][0]
        _, heads, rows = index(*self.blocks(tensor)[number][1:])
        shape = len(like), len(range(like.shape[1])[heads]), rows.stop - rows.start
        narrow = like.dtype if finished or tensor not in sums else wide(like)
        kinds = {"x": (HEAD_DIM, narrow), "v": (V_HEAD_DIM, narrow), "1": (1, wide(like))}
        parts = (kinds[part] for part in forms[tensor])
        return [like.new_empty((*shape, width), dtype=dtype) for width, dtype in parts]

    def take(self, tensor: str, number: int, finished: bool) -> list[Tensor]:
        """Return a message: a copy of an input, or a sum, which is gone from here then."""
        place, room = (tensor, number), self.room(tensor, number, finished)
        if tensor in sums:
            value = self.pop(place) if place in self else begin(tensor, room)
        else:
            value = self.statistics(number) if tensor == "STATS" else self[place]
        return [x.to(y.dtype).contiguous() for x, y in zip(value, room, strict=True)]

    def statistics(self, number: int) -> list[Tensor]:
        """Log-sum-exp of a block of queries, and of dout * out the sum along each row."""
        if ("OUT", number) not in self:
            return self["STATS", number]
        (dout,), (out, lse) = self["DOUT", number], self["OUT", number]
        return [lse, (dout.to(lse.dtype) * out.to(lse.dtype)).sum(dim=-1, keepdim=True)]

    def queries(self, number: int) -> list[Tensor]:
        """(dout, q, out, lse) of a block of queries, own or visiting."""
        given = [*self["DOUT", number], *self["Q", number]]
        if ("OUT", number) in self:
            return [*given, *self["OUT", number]]
        return [*with_output([*given, *self["STATS", number]])]

    def arrive(self, tensor: str, number: int, message: Any) -> None:
        """Take what a message brings: a sum is added now, a copy is waited for where it is read."""
        place = tensor, number
        if tensor in sums:
            self.add(tensor, number, wait(message))
        else:
            self.drop(place)
            self[place], self.coming[place] = message.received(), message

    def add(self, tensor: str, number: int, value: list[Tensor]) -> None:
        """Add to a sum; one that is not here yet begins with the value."""
        place = tensor, number
        if place not in self:
            self[place] = value
        elif tensor == "OUT":
            merge(*self[place], *value)
        else:
            add(self[place], value)

    def add_joined(self, tensor: str, numbers: list[int], whole: list[Tensor]) -> None:
        """Add to the sums of several blocks, which lie one after the other."""
        ends = [self.blocks(tensor)[number][1] for number in numbers]
        parts = [x.split([end - first for first, end in ends], dim=2) for x in whole]
        for number, *value in zip(numbers, *parts, strict=True):
            self.add(tensor, number, value)

    def collect(self, tensor: str) -> list[Tensor]:
        """The sums of this rank's blocks as shards; what nobody added to is zero."""
        whole = begin(tensor, self.shards["KV" if tensor == "DKV" else "Q"])
        for number, at in self.own(tensor):
            for x, part in zip(whole, self.get((tensor, number), ()), strict=False):
                x[at] = part
        return whole


def begin(tensor: str, likes: list[Tensor]) -> list[Tensor]:
    """Zero accumulators like some tensors."""
    return zero_output(likes) if tensor == "OUT" else zeros(likes)


def joined(values: list[list[Tensor]]) -> list[Tensor]:
    """Values of several blocks, one after the other."""
    if len(values) == 1:
        return values[0]
    return [torch.cat(parts, dim=2) for parts in zip(*values, strict=True)]


def index(rows: Any = (), heads: Any = ()) -> tuple[slice, ...]:
    """The index of some rows of some heads; where none are named, of all."""
    return slice(None), *(slice(*ends) if ends else slice(None) for ends in (heads, rows))
