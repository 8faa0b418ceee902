"""One training iteration: attention from a plan, matrix products, transfers, optimiser traffic.

    layer     attention forward + backward + recomputation, projections and FFN, tensor transfers
    whole-layer checkpointing            forward is run again, attention and its transfers included
    rematerialisation-aware              attention is not: its output and log-sum-exp were kept
                                         (DistFlashAttn, section 3.3)
    iteration layers, vocabulary, FSDP gathers of the weights, optimiser step

Attention under a plan is the simulator's makespan of the forward and of the backward pass;
head-parallel systems run one rank's plan over the whole sequence on their (padded) heads.
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
STATES = 2 + 2 + 12  # bytes kept per weight: it and its gradient, in 32 bit a master and moments
SCORE_PASSES = {"forward": 8, "backward": 10}  # of materialised scores through memory (RSA)


@dataclass(frozen=True)
class Setting:
    """A way to train a model: on what, by whom, over how many tokens of one sequence.

    `system` is one of our schedules, or megatron-v3, ulysses-system, rsa. `matrix` is
    the share of the chip's peak that matrix products outside attention reach.
    """

    model: Model
    hardware: Hardware
    ranks: int
    seq: int
    system: str
    matrix: float = 0.6
    rematerialise: bool = False  # True: attention is never run again in the backward pass
    overlap: bool = True
    partial_bytes: int = 4  # of an element of a travelling partial result


def iteration(setting: Setting) -> float:
    """Predict the seconds of one iteration on the slowest rank; batch 1, causal.

    Forward and backward pass, and optimiser step. Transfers are exposed; gathers of weights and the
    reduction of gradients count where they take longer than matrix products.
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
    """Returns True for a system that shards heads, and so pads them."""
    return system.startswith(("megatron", "ulysses-"))


def heads_computed(setting: Setting) -> int:
    """Query heads computed in all, padding included."""
    heads = setting.model.heads
    return padded(heads, setting.ranks) if head_parallel(setting.system) else heads


def attention_seconds(setting: Setting, pass_: Pass) -> float:
    """Seconds of one layer's attention pass on the slowest rank."""
    if setting.system == "rsa":
        return _materialised(setting, pass_)
    if head_parallel(setting.system):
        return _one_rank(setting, pass_)
    model = setting.model
    work = Workload(setting.seq, setting.seq, model.heads, model.kv_heads, model.head_dim)
    planned = plan(setting.system, work, setting.ranks, pass_=pass_)
    on = narrower(setting.hardware, sent_share(planned, setting.partial_bytes))
    return _makespan(planned, on, setting.overlap)


@lru_cache(maxsize=512)  # `ringloom reproduce distflash --fit` takes 1.4 times as long without
def _makespan(planned: Plan, hardware: Hardware, overlap: bool) -> float:
    return seconds_of(planned, hardware, Scenario(overlap=overlap))


def sent_share(planned: Plan, partial_bytes: int) -> float:
    """Bytes sent if an element of a partial result took `partial_bytes`, over those it takes."""
    if partial_bytes == 4:
        return 1.0
    copies = partials = 0.0
    for number, move in planned.moves():
        sent, complete = message_bytes(planned, number, move), reaches_owner(planned, number, move)
        partial = ~complete if move.accumulates else complete
        copies += float(sent[~partial].sum())
        partials += float(sent[partial].sum())
    total = copies + partials
    return (copies + partials * partial_bytes / 4) / total if total else 1.0


def narrower(hardware: Hardware, share: float) -> Hardware:
    """The same links for messages of which only a share of the bytes is sent."""
    if share == 1.0:
        return hardware
    links = {key: hardware[key] / share for key in ("intra.bandwidth", "inter.bandwidth")}
    return hardware.changed(links, "messages of fewer bytes")


def unbounded(hardware: Hardware) -> Hardware:
    """The same chips joined by links that take no time."""
    free = {f"{where}.bandwidth": 1e21 for where in ("intra", "inter")}
    free |= {f"{where}.alpha": 0.0 for where in ("intra", "inter")}
    return hardware.changed(free, "free communication")


def communication_overhead(setting: Setting) -> float:
    """Time that communication adds to an iteration, as a share of the time without any."""
    ideal = iteration(replace(setting, hardware=unbounded(setting.hardware)))
    return iteration(setting) / ideal - 1


def _one_rank(setting: Setting, pass_: Pass) -> float:
    """The whole sequence on a rank's share of the heads."""
    model = setting.model
    heads = heads_computed(setting) // setting.ranks
    shared = math.gcd(heads, model.kv_heads)
    work = Workload(setting.seq, setting.seq, heads, shared, model.head_dim)
    return _makespan(plan("ring", work, 1, pass_=pass_), setting.hardware, True)


def _materialised(setting: Setting, pass_: Pass) -> float:
    """Ring self-attention: all pairs, masked or not, scores in 32 bit through memory."""
    model, on = setting.model, setting.hardware
    pairs = setting.seq**2 / setting.ranks * model.heads
    flop = {"forward": 4, "backward": 8}[pass_] * model.head_dim * pairs
    shape = Shape(setting.ranks, 1, model.heads, model.head_dim, setting.seq, model.width, 1)
    moved = traffic("ring self-attention", shape)
    elements = moved.forward if pass_ == "forward" else moved.backward
    return (
        flop / (on.peak("bfloat16") * setting.matrix)
        + SCORE_PASSES[pass_] * 4 * pairs / on["memory.bandwidth"]
        + elements * WIDTH / bandwidth(on, setting.ranks, "hop")
    )


def matrix_seconds(setting: Setting) -> float:
    """Projections, FFN and vocabulary: forward, twice that backward, and the layers once more."""
    model = setting.model
    scale = heads_computed(setting) / model.heads
    layers = model.layers * model.layer_weights * scale
    tokens = setting.seq / setting.ranks
    flop = 2 * tokens * (4 * layers + 3 * model.vocab * model.width)
    return flop / (setting.hardware.peak("bfloat16") * setting.matrix)


def transfer_seconds(setting: Setting) -> float:
    """Exposed collectives of one layer over a whole iteration, the recomputation included."""
    model, on, ranks = setting.model, setting.hardware, setting.ranks
    if not head_parallel(setting.system):
        return 0.0
    shape = Shape(ranks, 1, heads_computed(setting), model.head_dim, setting.seq, model.width, 1)
    moved = traffic(setting.system, shape)
    forwards = 1 if setting.rematerialise else 2
    elements = (forwards * moved.forward + moved.backward) * (ranks - 1) / ranks
    way: Way = "all-to-all" if setting.system == "ulysses-system" else "collective"
    return elements * WIDTH / bandwidth(on, ranks, way)


def sharding_seconds(setting: Setting) -> float:
    """FSDP: weights gathered forward and backward, gradients reduced; hidden behind compute.

    Tensor parallelism keeps its own share of the weights and moves none.
    """
    if setting.system.startswith("megatron"):
        return 0.0
    moved = 3 * WIDTH * setting.model.parameters * (setting.ranks - 1) / setting.ranks
    return moved / bandwidth(setting.hardware, setting.ranks, "collective")


def memory(setting: Setting) -> float:
    """Bytes per GPU: weights and their states, checkpoints, logits, and the layer at work.

    Everything is shared by all ranks. The layer at work keeps Q, K, V, the output and what is
    inside its FFN, with gradients; RSA also the scores of its tokens, masked or not.
    """
    model, tokens = setting.model, setting.seq / setting.ranks
    layer = tokens * (2 * (model.heads + model.kv_heads) * model.head_dim + 3 * model.ff)
    if setting.system == "rsa":
        layer += tokens * setting.seq * model.heads
    kept = tokens * model.width * model.layers * (2 if setting.rematerialise else 1)
    states = STATES * model.parameters / setting.ranks
    return states + WIDTH * (kept + 2 * layer + 2 * tokens * model.vocab)


def longest_sequence(setting: Setting) -> int:
    """The largest power of two of tokens, at least a thousand, that fits in memory."""
    seq = 1024
    while memory(replace(setting, seq=2 * seq)) <= setting.hardware["memory.capacity"]:
        seq *= 2
    return seq


def bandwidth(on: Hardware, ranks: int, way: Way) -> float:
    """Bytes/s that a rank sends: within a node, or where the ranks of several nodes exchange.

    hop         once around all ranks: the slowest link of the ring
    collective  rings through every port of a node share what crosses it
    all-to-all  each rank sends the share of the other nodes over its own port
    """
    intra, inter = (link.bandwidth for link in on.links)
    if ranks <= on.ranks_per_node:
        return intra
    if way == "hop":
        return inter
    if way == "collective":
        return min(intra, on.ranks_per_node * inter)
    away = (ranks - on.ranks_per_node) / ranks
    return 1 / max(away / inter, (1 - away) / intra)


def waste(heads: int, devices: int) -> float:
    """The share that padding heads adds to the work: 33 heads on 16 devices, 45.5%."""
    return padded(heads, devices) / heads - 1
