"""Transformers: parameters, activation memory of a layer, and the longest context that fits.

Bytes of one layer in 16 bit (Ring Attention, table 1), for batch b, s tokens, width h, block c:

    vanilla                  scores 2 b heads s^2          FFN 8 b s h
    memory-efficient         inputs 2 b s h + 4 b c h      FFN 8 b s h
    and blockwise FFN        inputs 2 b s h                FFN 2 b s h
    ring                     6 blocks of b c h elements    FFN 2 blocks

A layer needs the larger of its two halves. The ring's row counts blocks, not bytes, as printed:
Q, the output, and K and V twice (current and arriving).
"""

from dataclasses import dataclass
from typing import NamedTuple

from ringloom.planner.analysis.liveness import slots
from ringloom.planner.ir import TENSORS, Plan

FULL = 4  # bytes of a full-precision number
STATES = 3 * FULL  # weight and two moments of Adam; gradients are applied as they come
KINDS = 2  # a value and its gradient, in the layer that is being worked on


@dataclass(frozen=True)
class Model:
    """A decoder: `width` elements per token, `ff` inside the FFN, `matrices` of the FFN.

    `kv_heads` defaults to `heads`; `head_dim` to width / heads.
    """

    name: str
    width: int
    ff: int
    layers: int
    heads: int
    kv_heads: int = 0
    head_dim: int = 0
    matrices: int = 3  # gate, up and down; 2 where there is no gate
    vocab: int = 32000

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        object.__setattr__(self, "head_dim", self.head_dim or self.width // self.heads)

    @property
    def attention_weights(self) -> int:
        """Parameters of one layer's query, key, value and output projections."""
        return 2 * self.width * (self.heads + self.kv_heads) * self.head_dim

    @property
    def layer_weights(self) -> int:
        """Parameters of one layer's projections and FFN, norms left out."""
        return self.attention_weights + self.matrices * self.width * self.ff

    @property
    def parameters(self) -> int:
        """Parameters of the model, the embedding and the output matrix apart, norms left out."""
        return self.layers * self.layer_weights + 2 * self.vocab * self.width


class Halves(NamedTuple):
    """Bytes that attention and the FFN of one layer keep."""

    attention: float
    ffn: float


def layer(scheme: str, batch: int, seq: int, width: int, heads: int, block: int) -> Halves:
    """Bytes in 16 bit of one layer's activations; of `ring`, elements, as the paper counts."""
    tokens, here = batch * seq * width, batch * block * width
    return {
        "vanilla": Halves(2 * batch * heads * seq**2, 8 * tokens),
        "memory-efficient": Halves(2 * tokens + 4 * here, 8 * tokens),
        "blockwise FFN": Halves(2 * tokens, 2 * tokens),
        "ring": Halves(6 * here, 2 * here),
    }[scheme]


def blocks_held(plan: Plan) -> int:
    """Most blocks (one vector per token and head each) that a rank of a forward plan holds.

    In Ring Attention's terms: the queries, the output, and the KV blocks in travel; a rank's own
    KV block is one of those, as the layer does not need it again once it has been sent on.
    """
    travelling = int(slots(plan, "KV").max(initial=0))
    copies = {"Q": 1, "KV": max(travelling, 1), "OUT": 1}
    return sum(count * len(TENSORS[tensor].vectors) for tensor, count in copies.items())


@dataclass(frozen=True)
class Cluster:
    """Devices that train one sequence: `memory` bytes each, tensor parallel over `tensor`."""

    name: str
    devices: int
    memory: float
    tensor: int


class Need(NamedTuple):
    """Bytes on each device: weights and optimiser, stored layer inputs, the working layer."""

    states: float
    checkpoints: float
    working: float


def training_need(scheme: str, model: Model, cluster: Cluster, seq: int) -> Need:
    """Bytes per device to train one sequence, everything in 32 bit.

    Assumed: weights and optimiser states shared by all devices; a checkpoint at each layer's
    input, and the logits, shared by the tensor-parallel group; the layer that is being worked on
    with its gradients, of which only the scores are shared by that group (heads are split, the
    blockwise computation is not). A ring shares the sequence among all devices, and so all of it.
    """
    ring = scheme == "ring"
    block = seq // cluster.devices if ring else 0
    halves = layer(scheme, 1, seq, model.width, model.heads, block)
    scale = KINDS * FULL / (1 if ring else 2)  # from elements, or from 16 bit
    sharing = cluster.devices if ring else cluster.tensor
    return Need(
        STATES * model.parameters / cluster.devices,
        FULL * seq * (model.width * model.layers + model.vocab) / sharing,
        scale * max(halves.ffn, halves.attention / (cluster.tensor if scheme == "vanilla" else 1)),
    )


def longest_context(scheme: str, model: Model, cluster: Cluster) -> int:
    """The largest power of two of tokens that fits, at least 256."""
    seq = 256
    while sum(training_need(scheme, model, cluster, 2 * seq)) <= cluster.memory:
        seq *= 2
    return seq
