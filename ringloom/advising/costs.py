"""Counts the flops of matrix products and the bytes of collectives, per chip and step.

The matrix products of a weight take 2 flop per token in the forward pass and 4 in the backward
pass. With full checkpointing, layers are computed forward twice. For a tensor of S bytes in a group
of N chips, a chip sends

    all-reduce                        2 (N - 1) / N * S
    all-gather or reduce-scatter        (N - 1) / N * S

Latencies and overlap with compute are not modelled.
"""

from dataclasses import dataclass
from typing import Literal

from ringloom.advising.model import Model
from ringloom.simulator.hardware import Hardware

Zero = Literal[0, 1, 3]
Checkpoint = Literal["none", "full"]
ZEROS: tuple[Zero, ...] = (0, 1, 3)
CHECKPOINTS: tuple[Checkpoint, ...] = ("none", "full")
WIDTH = 2  # bytes of a weight, a gradient or an activation: bfloat16
# Fraction of a chip's peak rate that matrix products outside attention reach, fitted to 18
# published iterations on A100s (`ringloom reproduce distflash --fit`); not measured on other chips.
MATRIX_SHARE = 0.57


@dataclass(frozen=True)
class Split:
    """A split of chips into tensor, context and data parallelism.

    `tensor` neighbouring chips share the heads, and `context` such groups share a sequence. `data`
    groups work on different sequences, `micro_batches` one after the other.
    """

    tensor: int
    context: int
    data: int
    micro_batches: int

    @property
    def replicas(self) -> int:
        """Returns the number of chips that have the same part of the parameters."""
        return self.context * self.data

    def __str__(self) -> str:
        return f"{self.tensor} x {self.context} x {self.data}"


def forwards(checkpoint: Checkpoint) -> int:
    """Returns how often a layer is computed forward in a step."""
    return 2 if checkpoint == "full" else 1


def local_tokens(seq: int, split: Split) -> int:
    """Returns the largest number of tokens of one sequence on a chip."""
    return -(-seq // split.context)


def matrix_flop(model: Model, seq: int, split: Split, checkpoint: Checkpoint) -> int:
    """Returns the flop of one chip's matrix products in a step, without attention."""
    tokens = split.micro_batches * local_tokens(seq, split)
    layers = model.layers * model.layer_matrices(split.tensor)
    head = model.head_matrix(split.tensor)
    return tokens * ((2 * forwards(checkpoint) + 4) * layers + 6 * head)


def tensor_bytes(model: Model, seq: int, split: Split, checkpoint: Checkpoint) -> float:
    """Returns the bytes that a chip sends to its tensor-parallel group in a step.

    Each layer all-reduces activations after attention and after the feed-forward layer, forward and
    backward.
    """
    tokens = split.micro_batches * local_tokens(seq, split)
    reductions = 2 * model.layers * (forwards(checkpoint) + 1)
    reduced = reductions * tokens * model.width * WIDTH
    return 2 * reduced * (split.tensor - 1) / split.tensor


def gradient_bytes(model: Model, split: Split, zero: Zero) -> float:
    """Returns the bytes that a chip sends in a step for gradients and sharded parameters.

    ZeRO 0 and 1 all-reduce gradients once per step. ZeRO 3 gathers parameters forward and backward,
    and reduces gradients, in every micro-batch.
    """
    transfers = 3 * split.micro_batches if zero == 3 else 2
    parameters = model.parameters(split.tensor) * WIDTH
    return transfers * parameters * (split.replicas - 1) / split.replicas


def gradient_rate(hardware: Hardware, split: Split) -> float:
    """Returns the bytes/s of a collective of all chips with the same part of the parameters.

    Between nodes, rings use all ports that the group has in a node.
    """
    intra, inter = (link.bandwidth for link in hardware.links)
    if split.tensor * split.replicas <= hardware.ranks_per_node:
        return intra
    return min(intra, hardware.ranks_per_node // split.tensor * inter)
