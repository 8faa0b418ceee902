"""One training iteration: attention from a plan, matrix products, transfers, optimiser traffic.

    iteration   layers, vocabulary, FSDP gathers of weights, optimiser step
    layer       attention forward and backward, projections, FFN, transfers of activations, and
                recomputation from one of two kinds of checkpoints:
                whole-layer checkpoints repeat the forward pass, with attention and transfers;
                rematerialisation-aware ones keep the output and log-sum-exp, and do not repeat
                attention (DistFlashAttn, section 3.3)

The time of attention is the simulator's makespan of the forward and of the backward pass. In
head-parallel systems each rank attends the whole sequence with its share of the padded heads.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from ringloom.planner.analysis.messages import message_bytes, reaches_owner
from ringloom.planner.ir import Pass, Plan
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.reproduce.models.baselines import Shape, padded, traffic
from ringloom.reproduce.models.transformers import Model
from ringloom.simulator.hardware import Hardware
from ringloom.simulator.prediction import seconds_of
from ringloom.simulator.scenario import Scenario

Way = Literal["hop", "collective", "all-to-all"]
WIDTH = 2  # bytes of a 16-bit weight or activation
ADAM = 2 * 16 + 2 + 4  # bytes moved per weight: master and two moments read and written, gradient
STATES = 2 + 2 + 12  # bytes kept per weight: 16-bit weight, gradient; 32-bit master, two moments
SCORE_PASSES = {"forward": 8, "backward": 10}  # of materialised scores through memory (RSA)


@dataclass(frozen=True)
class Setting:
    """A training setup: model, system, hardware, and length of the sequence.

    `system` is a schedule of ringloom, or megatron-v3, ulysses-system or rsa. `matrix` is the share
    of the chip's peak that matrix products outside attention reach.
    """

    model: Model
    hardware: Hardware
    ranks: int
    seq: int
    system: str
    matrix: float = 0.6
    rematerialise: bool = False  # True: the backward pass does not repeat attention
    overlap: bool = True
    partial_bytes: int = 4  # per element of a partial result that travels


def iteration(setting: Setting) -> float:
    """Predicts the seconds of one training iteration on the slowest rank: batch 1, causal.

    Transfers of activations are exposed; gathers of weights and the reduction of gradients overlap
    with matrix products.
    """
    model, forwards = setting.model, 1 if setting.rematerialise else 2
    forward, backward = (attention_seconds(setting, p) for p in ("forward", "backward"))
    attention = model.layers * (forwards * forward + backward)
    matrices = matrix_seconds(setting)
    transfers = model.layers * transfer_seconds(setting)
    sharding = max(0.0, sharding_seconds(setting) - matrices)
    optimiser = model.parameters / setting.ranks * ADAM / setting.hardware["memory.bandwidth"]
    return attention + matrices + transfers + sharding + optimiser


def head_parallel(system: str) -> bool:
    """Returns True for a system that shards heads and therefore pads them."""
    return system.startswith(("megatron", "ulysses-"))


def heads_computed(setting: Setting) -> int:
    """Returns the number of computed query heads, including padding."""
    heads = setting.model.heads
    return padded(heads, setting.ranks) if head_parallel(setting.system) else heads


def attention_seconds(setting: Setting, pass_: Pass) -> float:
    """Returns the seconds of one layer's attention pass on the slowest rank."""
    if setting.system == "rsa":
        return _materialised(setting, pass_)
    if head_parallel(setting.system):
        return _one_rank(setting, pass_)
    model = setting.model
    work = Workload(setting.seq, setting.seq, model.heads, model.kv_heads, model.head_dim)
    schedule = plan(setting.system, work, setting.ranks, pass_=pass_)
    share = sent_share(schedule, setting.partial_bytes)
    return _makespan(schedule, with_fewer_bytes(setting.hardware, share), setting.overlap)


@lru_cache(maxsize=512)  # `reproduce distflash --fit` takes 1.4 times as long without this cache
def _makespan(plan: Plan, hardware: Hardware, overlap: bool) -> float:
    return seconds_of(plan, hardware, Scenario(overlap=overlap))


def sent_share(plan: Plan, partial_bytes: int) -> float:
    """Returns bytes sent if partial results have `partial_bytes` per element, over those of 4."""
    if partial_bytes == 4:
        return 1.0
    copies = partials = 0.0
    for number, move in plan.moves():
        sent, complete = message_bytes(plan, number, move), reaches_owner(plan, number, move)
        partial = ~complete if move.accumulates else complete
        copies += float(sent[~partial].sum())
        partials += float(sent[partial].sum())
    total = copies + partials
    return (copies + partials * partial_bytes / 4) / total if total else 1.0


def with_fewer_bytes(hardware: Hardware, share: float) -> Hardware:
    """Returns hardware on which a message takes the time of a `share` of its bytes."""
    if share == 1.0:
        return hardware
    links = {key: hardware[key] / share for key in ("intra.bandwidth", "inter.bandwidth")}
    return hardware.changed(links, "messages of fewer bytes")


def with_free_links(hardware: Hardware) -> Hardware:
    """Returns the same chips with links that take no time."""
    links = {f"{link}.bandwidth": 1e21 for link in ("intra", "inter")}
    links |= {f"{link}.alpha": 0.0 for link in ("intra", "inter")}
    return hardware.changed(links, "free communication")


def communication_overhead(setting: Setting) -> float:
    """Returns the time that communication adds, relative to an iteration with free links."""
    ideal = iteration(replace(setting, hardware=with_free_links(setting.hardware)))
    return iteration(setting) / ideal - 1


def _one_rank(setting: Setting, pass_: Pass) -> float:
    """Returns the time of a rank that attends the whole sequence with its share of the heads."""
    model = setting.model
    heads = heads_computed(setting) // setting.ranks
    kv_heads = math.gcd(heads, model.kv_heads)
    work = Workload(setting.seq, setting.seq, heads, kv_heads, model.head_dim)
    return _makespan(plan("ring", work, 1, pass_=pass_), setting.hardware, True)


def _materialised(setting: Setting, pass_: Pass) -> float:
    """Returns the time of ring self-attention, which writes 32-bit scores of all pairs."""
    model, on = setting.model, setting.hardware
    pairs = setting.seq**2 / setting.ranks * model.heads
    flop = {"forward": 4, "backward": 8}[pass_] * model.head_dim * pairs
    shape = Shape(setting.ranks, 1, model.heads, model.head_dim, setting.seq, model.width, 1)
    sent = traffic("ring self-attention", shape)
    elements = sent.forward if pass_ == "forward" else sent.backward
    return (
        flop / (on.peak("bfloat16") * setting.matrix)
        + SCORE_PASSES[pass_] * 4 * pairs / on["memory.bandwidth"]
        + elements * WIDTH / bandwidth(on, setting.ranks, "hop")
    )


def matrix_seconds(setting: Setting) -> float:
    """Returns the time of other matrix products: forward, repeated, and backward."""
    model = setting.model
    scale = heads_computed(setting) / model.heads
    layers = model.layers * model.layer_weights * scale
    tokens = setting.seq / setting.ranks
    flop = 2 * tokens * (4 * layers + 3 * model.vocab * model.width)
    return flop / (setting.hardware.peak("bfloat16") * setting.matrix)


def transfer_seconds(setting: Setting) -> float:
    """Returns the time of a layer's exposed collectives per iteration, with recomputation."""
    model, on, ranks = setting.model, setting.hardware, setting.ranks
    if not head_parallel(setting.system):
        return 0.0
    shape = Shape(ranks, 1, heads_computed(setting), model.head_dim, setting.seq, model.width, 1)
    sent = traffic(setting.system, shape)
    forwards = 1 if setting.rematerialise else 2
    elements = (forwards * sent.forward + sent.backward) * (ranks - 1) / ranks
    way: Way = "all-to-all" if setting.system == "ulysses-system" else "collective"
    return elements * WIDTH / bandwidth(on, ranks, way)


def sharding_seconds(setting: Setting) -> float:
    """Returns the time of FSDP: gathers of weights and reduction of gradients.

    It is 0 for tensor parallelism, which sends no weights.
    """
    if setting.system.startswith("megatron"):
        return 0.0
    sent = 3 * WIDTH * setting.model.parameters * (setting.ranks - 1) / setting.ranks
    return sent / bandwidth(setting.hardware, setting.ranks, "collective")


def memory(setting: Setting) -> float:
    """Returns bytes per GPU: weights and states, checkpoints, logits, and the current layer.

    Everything is sharded over all ranks. The current layer keeps Q, K, V, the output, activations
    inside the FFN, and all their gradients; RSA also keeps the scores of all pairs.
    """
    model, tokens = setting.model, setting.seq / setting.ranks
    layer = tokens * (2 * (model.heads + model.kv_heads) * model.head_dim + 3 * model.ff)
    if setting.system == "rsa":
        layer += tokens * setting.seq * model.heads
    checkpoints = tokens * model.width * model.layers * (2 if setting.rematerialise else 1)
    states = STATES * model.parameters / setting.ranks
    return states + WIDTH * (checkpoints + 2 * layer + 2 * tokens * model.vocab)


def longest_sequence(setting: Setting) -> int:
    """Returns the longest sequence that fits in memory, a power of two of at least 1,024 tokens."""
    seq = 1024
    while memory(replace(setting, seq=2 * seq)) <= setting.hardware["memory.capacity"]:
        seq *= 2
    return seq


def bandwidth(on: Hardware, ranks: int, way: Way) -> float:
    """Returns the bytes/s at which a rank sends, within a node or across nodes.

    hop         limited by the slowest link of a ring of all ranks
    collective  rings use all ports of a node in parallel
    all-to-all  each rank sends the data for other nodes through its own port
    """
    intra, inter = (link.bandwidth for link in on.links)
    if ranks <= on.ranks_per_node:
        return intra
    if way == "hop":
        return inter
    if way == "collective":
        return min(intra, on.ranks_per_node * inter)
    remote = (ranks - on.ranks_per_node) / ranks  # share of the data for other nodes
    return 1 / max(remote / inter, (1 - remote) / intra)


def waste(heads: int, devices: int) -> float:
    """Returns the share of extra work due to padded heads: 0.455 for 33 heads on 16 devices."""
    return padded(heads, devices) / heads - 1
