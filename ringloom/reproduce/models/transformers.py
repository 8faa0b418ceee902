"""Transformers: parameters, activation memory of a layer, and the longest context that fits.

Bytes of one layer in 16 bit (Ring Attention, table 1), for batch b, s tokens, width h, block c:

    vanilla                  scores 2 b heads s^2          FFN 8 b s h
    memory-efficient         inputs 2 b s h + 4 b c h      FFN 8 b s h
    and blockwise FFN        inputs 2 b s h                FFN 2 b s h
    ring                     6 blocks of b c h elements    FFN 2 blocks

A layer needs the larger of attention and FFN. As printed, the row of ring counts elements, not
bytes: Q, the output, and K and V twice (current and arriving).
"""

from dataclasses import dataclass
from typing import NamedTuple

from ringloom.planner.analysis.liveness import slots
from ringloom.planner.ir import TENSORS, Plan

FULL = 4  # bytes of a full-precision number
STATES = 3 * FULL  # weight and two Adam moments; gradients are applied immediately
COPIES = 2  # of an activation in the current layer: value and gradient


@dataclass(frozen=True)
class Model:
    """A decoder: `width` elements per token, `ff` elements inside the FFN.

    `kv_heads` defaults to `heads`; `head_dim` to width / heads.
    """

    name: str
    width: int
    ff: int
    layers: int
    heads: int
    kv_heads: int = 0
    head_dim: int = 0
    matrices: int = 3  # of the FFN: gate, up and down; 2 without a gate
    vocab: int = 32000

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        object.__setattr__(self, "head_dim", self.head_dim or self.width // self.heads)

    @property
    def attention_weights(self) -> int:
        """Returns the parameters of one layer's query, key, value and output projections."""
        return 2 * self.width * (self.heads + self.kv_heads) * self.head_dim

    @property
    def layer_weights(self) -> int:
        """Returns the parameters of one layer's projections and FFN, without norms."""
        return self.attention_weights + self.matrices * self.width * self.ff

    @property
    def parameters(self) -> int:
        """Returns all parameters, with separate embedding and output matrices, without norms."""
        return self.layers * self.layer_weights + 2 * self.vocab * self.width


class Halves(NamedTuple):
    """Bytes of the activations of a layer's attention and FFN."""

    attention: float
    ffn: float


def layer(scheme: str, batch: int, seq: int, width: int, heads: int, block: int) -> Halves:
    """Returns the bytes of a layer's 16-bit activations; elements for `ring`, as in the paper."""
    total, in_block = batch * seq * width, batch * block * width
    return {
        "vanilla": Halves(2 * batch * heads * seq**2, 8 * total),
        "memory-efficient": Halves(2 * total + 4 * in_block, 8 * total),
        "blockwise FFN": Halves(2 * total, 2 * total),
        "ring": Halves(6 * in_block, 2 * in_block),
    }[scheme]


def blocks_held(plan: Plan) -> int:
    """Returns the maximum number of blocks (one vector per token and head) on a rank.

    Counts like Ring Attention: queries, output, and travelling K and V. A rank's own K and V travel
    too, because the layer does not use them again.
    """
    travelling = int(slots(plan, "KV").max(initial=0))
    copies = {"Q": 1, "KV": max(travelling, 1), "OUT": 1}
    return sum(count * len(TENSORS[tensor].vectors) for tensor, count in copies.items())


@dataclass(frozen=True)
class Cluster:
    """Devices that train one sequence: `memory` bytes each, `tensor` in a tensor-parallel group."""

    name: str
    devices: int
    memory: float
    tensor: int


class Need(NamedTuple):
    """Bytes per device: weights and optimiser states, checkpoints, activations of one layer."""

    states: float
    checkpoints: float
    working: float


def training_need(scheme: str, model: Model, cluster: Cluster, seq: int) -> Need:
    """Returns the bytes per device to train one sequence, everything in 32 bit.

    Assumptions: weights and optimiser states are sharded over all devices; the tensor-parallel
    group shards a checkpoint of each layer's input, the logits, and the scores of the current
    layer, but no other activations. A ring shards everything over all devices.
    """
    ring = scheme == "ring"
    block = seq // cluster.devices if ring else 0
    halves = layer(scheme, 1, seq, model.width, model.heads, block)
    scale = COPIES * FULL / (1 if ring else 2)  # from elements, or from 16-bit values
    shards = cluster.devices if ring else cluster.tensor
    return Need(
        STATES * model.parameters / cluster.devices,
        FULL * seq * (model.width * model.layers + model.vocab) / shards,
        scale * max(halves.ffn, halves.attention / (cluster.tensor if scheme == "vanilla" else 1)),
    )


def longest_context(scheme: str, model: Model, cluster: Cluster) -> int:
    """Returns the longest sequence that fits in memory, a power of two of at least 256 tokens."""
    seq = 256
    while sum(training_need(scheme, model, cluster, 2 * seq)) <= cluster.memory:
        seq *= 2
    return seq
