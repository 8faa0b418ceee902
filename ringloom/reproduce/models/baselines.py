"""Baselines of the papers as analytic models: traffic and memory per layer.

ring self-attention   K and V travel in two separate rounds, scores are materialised (RSA, 2021)
tensor parallel       one all-reduce after attention, one after the FFN (Megatron v1)
Megatron v3           tensor and sequence parallel: all-gather before, reduce-scatter after each
Ulysses               all-to-all from token to head shards before attention, and back after it
BurstAttention        the paper's own cost table, without and with local optimisation

All counts are elements of one layer. A tensor [B, N, Z d] counts 1; an all-reduce moves it twice,
an all-gather or a reduce-scatter once. As in the papers, the factor (G - 1)/G of hops and
collectives is omitted.
"""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Shape:
    """G devices, batch B, Z heads of d, N tokens, width H, M elements of on-chip memory."""

    devices: int
    batch: int
    heads: int
    head_dim: int
    seq: int
    width: int
    sram: int

    @property
    def tensor(self) -> int:
        """Returns the elements of Q, K, V or the output: BZNd."""
        return self.batch * self.heads * self.seq * self.head_dim

    @property
    def hidden(self) -> int:
        """Returns the elements of a layer's input: BNH."""
        return self.batch * self.seq * self.width

    @property
    def scores(self) -> int:
        """Returns the elements of all score matrices: BZN^2."""
        return self.batch * self.heads * self.seq**2

    @property
    def rows(self) -> float:
        """Returns the rows of a tile that fits on chip with its operands: M/4d (FlashAttention)."""
        return self.sram / (4 * self.head_dim)


class Traffic(NamedTuple):
    """Elements that each device sends in a forward and in a backward pass of one layer."""

    forward: float
    backward: float

    @property
    def total(self) -> float:
        """Returns the sum of both passes."""
        return sum(self)


def traffic(system: str, shape: Shape) -> Traffic:
    """Returns the elements that a baseline sends per device and layer."""
    forward, backward = {  # whole tensors
        # K, then V, around the ring; backward both again, and the gradients of both all-reduced
        "ring self-attention": (2, 2 + 2 * 2),
        # attention and FFN each; the backward pass gathers the inputs of both once more
        "megatron-v3": (2 + 2, 2 + 2 + 2),
        # BurstAttention books v3, too, as v1: without gathering the inputs again
        "tensor parallel": (2 * 2, 2 * 2),
        # Q, K, V and the output: each device sends its 1/G of a tensor
        "ulysses-system": (4 / shape.devices, 4 / shape.devices),
        "burst": (2, 3 + 2 / shape.head_dim),
    }[system]
    return Traffic(forward * shape.tensor, backward * shape.tensor)


def checkpointed(system: str, shape: Shape) -> float:
    """Returns the elements per device of an iteration that repeats each forward pass."""
    moved = traffic(system, shape)
    return moved.total + moved.forward


def parameters(system: str, shape: Shape) -> float:
    """Returns the attention parameters on a device: 4HZd, sharded under tensor parallelism."""
    whole = 4 * shape.width * shape.heads * shape.head_dim
    return whole / shape.devices if system.startswith("tensor") else whole


def activations(system: str, shape: Shape) -> float:
    """Returns the elements of one layer's attention on a device (BurstAttention, table 1).

    Q, K, V and the output; the scores that exist at once; the layer's input. A system whose name
    ends in "flash" tiles its scores on chip and keeps one number per tile.
    """
    held = shape.scores / shape.devices
    if system.startswith("burst"):
        held /= shape.devices  # one visit's block of scores: N/G x N/G
    if system.endswith("flash"):
        held /= shape.rows**2
    hidden = shape.hidden if system.startswith("tensor") else shape.hidden / shape.devices
    return 4 * shape.tensor / shape.devices + held + hidden


def padded(heads: int, devices: int) -> int:
    """Returns the number of padded heads: the next multiple of the devices."""
    return -(-heads // devices) * devices
