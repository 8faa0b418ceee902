"""Analytic models of the papers' baselines: traffic and memory per layer.

ring self-attention   K and V travel in separate rounds, scores are materialised (RSA, 2021)
tensor parallel       one all-reduce after attention, one after the FFN (Megatron v1)
Megatron v3           tensor and sequence parallel: all-gather before both, reduce-scatter after
Ulysses               all-to-all from token to head shards before attention, and back after it
BurstAttention        the cost table of the paper, without and with local optimisation

All counts are elements per layer. An all-reduce moves a tensor [B, N, Z d] twice, an all-gather or
a reduce-scatter moves it once. As in the papers, the factor (G - 1)/G is omitted.
"""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Shape:
    """Sizes: G devices, batch B, Z heads of d, N tokens, width H, M elements of on-chip memory."""

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
        """Returns the rows of a tile that fits on chip with its inputs: M/4d (FlashAttention)."""
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
    forward, backward = {  # in tensors
        # forward: K and V; backward: K and V, and all-reduces of both gradients
        "ring self-attention": (2, 2 + 2 * 2),
        # for attention and FFN; the backward pass gathers the inputs again
        "megatron-v3": (2 + 2, 2 + 2 + 2),
        # BurstAttention counts v3 like v1: it does not gather the inputs again
        "tensor parallel": (2 * 2, 2 * 2),
        # Q, K, V and the output: each device sends 1/G of a tensor
        "ulysses-system": (4 / shape.devices, 4 / shape.devices),
        "burst": (2, 3 + 2 / shape.head_dim),
    }[system]
    return Traffic(forward * shape.tensor, backward * shape.tensor)


def checkpointed(system: str, shape: Shape) -> float:
    """Returns the elements per device of an iteration that repeats each forward pass."""
    sent = traffic(system, shape)
    return sent.total + sent.forward


def parameters(system: str, shape: Shape) -> float:
    """Returns the attention parameters on a device: 4HZd, sharded under tensor parallelism."""
    total = 4 * shape.width * shape.heads * shape.head_dim
    return total / shape.devices if system.startswith("tensor") else total


def activations(system: str, shape: Shape) -> float:
    """Returns the elements of one layer's attention on a device (BurstAttention, table 1).

    Counts Q, K, V and the output, the largest number of scores, and the layer's input. A system
    whose name ends in "flash" computes scores in tiles on chip and keeps one number per tile.
    """
    scores = shape.scores / shape.devices
    if system.startswith("burst"):
        scores /= shape.devices  # the block of one round: N/G x N/G
    if system.endswith("flash"):
        scores /= shape.rows**2
    hidden = shape.hidden if system.startswith("tensor") else shape.hidden / shape.devices
    return 4 * shape.tensor / shape.devices + scores + hidden


def padded(heads: int, devices: int) -> int:
    """Returns the number of heads after padding to a multiple of the devices."""
    return -(-heads // devices) * devices
