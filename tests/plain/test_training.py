"""The training model, its baselines and activation memory: laws rather than numbers."""

from dataclasses import replace

import pytest

from ringloom.planner.masks import Full
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.reproduce.models import baselines
from ringloom.reproduce.models.baselines import Shape, checkpointed, padded, traffic
from ringloom.reproduce.models.training import (
    Setting,
    attention_seconds,
    bandwidth,
    communication_overhead,
    heads_computed,
    iteration,
    sent_share,
    waste,
    with_free_links,
)
from ringloom.reproduce.models.transformers import (
    Cluster,
    Model,
    blocks_held,
    layer,
    longest_context,
    training_need,
)
from ringloom.simulator.hardware import hardware

LLAMA = Model("LLaMA-7B", 4096, 11008, 32, 32)
A100 = hardware("a100-nvlink")
SCHEMES = ("vanilla", "memory-efficient", "blockwise FFN", "ring")
BASE = Setting(LLAMA, A100, 8, 65536, "balanced")
SHAPE = Shape(8, 2, 32, 128, 65536, 4096, 98304)


def test_a_model_knows_its_parameters() -> None:
    assert LLAMA.parameters == pytest.approx(6.74e9, rel=0.01)
    assert replace(LLAMA, kv_heads=8).attention_weights < LLAMA.attention_weights
    assert Model("", 3200, 8640, 26, 32).head_dim == 100


def test_rematerialisation_saves_one_attention_forward_pass_and_nothing_else() -> None:
    whole, aware = iteration(BASE), iteration(replace(BASE, rematerialise=True))
    saved = LLAMA.layers * attention_seconds(BASE, "forward")
    assert whole - aware == pytest.approx(saved)
    more = iteration(replace(BASE, seq=4 * BASE.seq))
    gain = more / iteration(replace(BASE, seq=4 * BASE.seq, rematerialise=True))
    assert gain > whole / aware


def test_free_communication_is_never_slower_and_overlap_never_hurts() -> None:
    two_nodes = replace(BASE, ranks=16, seq=131072)
    free = iteration(replace(two_nodes, hardware=with_free_links(A100)))
    overlapped = iteration(two_nodes)
    serial = iteration(replace(two_nodes, overlap=False))
    assert free < overlapped < serial
    assert communication_overhead(two_nodes) == pytest.approx(overlapped / free - 1)


@pytest.mark.parametrize("system", ["megatron-v3", "ulysses-system"])
def test_head_parallel_systems_pay_for_padding(system: str) -> None:
    odd = Setting(replace(LLAMA, heads=33, kv_heads=33, width=4224), A100, 16, 65536, system)
    even = replace(odd, model=replace(odd.model, heads=48, kv_heads=48))
    assert heads_computed(odd) == 48
    for pass_ in ("forward", "backward"):
        padded_odd, divided = (attention_seconds(one, pass_) for one in (odd, even))
        assert padded_odd == pytest.approx(divided)
    assert heads_computed(replace(odd, system="ring")) == 33


def test_33_heads_on_16_devices_waste_45_percent() -> None:
    assert padded(33, 16) == 48
    assert waste(33, 16) == pytest.approx(0.4545, abs=1e-4)
    assert waste(32, 16) == 0


@pytest.mark.parametrize("system", ["ring", "balanced", "burst", "megatron-v3", "rsa"])
def test_longer_sequences_and_more_layers_take_longer(system: str) -> None:
    setting = replace(BASE, system=system)
    deeper = replace(setting, model=replace(LLAMA, layers=64))
    assert iteration(replace(setting, seq=131072)) > 2 * iteration(setting)
    assert iteration(deeper) > 1.8 * iteration(setting)


def test_materialised_scores_make_rsa_the_slowest() -> None:
    times = {s: iteration(replace(BASE, system=s)) for s in ("rsa", "ring", "balanced")}
    assert times["rsa"] > times["ring"] > times["balanced"]


def test_partial_results_in_16_bit_shrink_messages_and_only_those() -> None:
    work = Workload(seq=4096, heads=4, mask=Full())
    backward = plan("ring", work, 4, pass_="backward", passes=())
    assert sent_share(backward, 4) == 1
    # 3 hops of KV at 4 bytes beside 3 hops of DKV at 8 bytes, 4 in 16 bit; finished it takes 4
    assert sent_share(backward, 2) == pytest.approx((3 * 4 + 3 * 4 + 4) / (3 * 4 + 3 * 8 + 4))
    assert sent_share(plan("ring", work, 4), 2) == 1


def test_collectives_use_every_port_of_a_node_and_a_ring_only_one() -> None:
    inter = A100["inter.bandwidth"]
    assert bandwidth(A100, 8, "collective") == A100["intra.bandwidth"]
    assert bandwidth(A100, 16, "collective") == min(A100["intra.bandwidth"], 8 * inter)
    assert bandwidth(A100, 16, "hop") == inter


# Comparators


def test_megatron_moves_10nd_and_with_checkpoints_14nd() -> None:
    assert traffic("megatron-v3", SHAPE).total == 10 * SHAPE.tensor
    assert checkpointed("megatron-v3", SHAPE) == 14 * SHAPE.tensor
    assert traffic("tensor parallel", SHAPE).total == 8 * SHAPE.tensor


def test_ulysses_traffic_falls_with_the_devices_and_a_rings_does_not() -> None:
    more = replace(SHAPE, devices=16)
    assert traffic("ulysses-system", SHAPE).total == 2 * traffic("ulysses-system", more).total
    assert traffic("ring self-attention", SHAPE) == traffic("ring self-attention", more)


def test_burst_moves_less_than_the_ring_of_separate_rounds() -> None:
    burst, rsa = traffic("burst", SHAPE), traffic("ring self-attention", SHAPE)
    assert burst.forward == rsa.forward
    assert burst.backward == 3 * SHAPE.tensor + 2 * SHAPE.tensor / 128
    assert rsa.backward == 6 * SHAPE.tensor


def test_tiling_on_chip_and_splitting_rows_both_shrink_the_scores() -> None:
    kept = [
        baselines.activations(system, SHAPE)
        for system in ("ring self-attention", "burst", "burst flash")
    ]
    assert kept == sorted(kept, reverse=True)
    flash = baselines.activations("tensor parallel flash", SHAPE)
    assert flash < baselines.activations("tensor parallel", SHAPE)


# Activations


def test_each_scheme_keeps_less_than_the_one_before() -> None:
    sizes = [max(layer(s, 1, 131072, 4096, 32, 16384)) for s in SCHEMES]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_ring_plan_holds_six_blocks_however_many_ranks(ranks: int) -> None:
    ring = plan("ring", Workload(seq=ranks * 128, heads=4, dtype="float32"), ranks)
    assert blocks_held(ring) == (6 if ranks > 2 else 4)


def test_states_take_12_bytes_per_parameter_over_all_devices() -> None:
    need = training_need("blockwise FFN", LLAMA, Cluster("", 4, 1, 2), 1024)
    assert need.states == 12 * LLAMA.parameters / 4
    assert need.checkpoints == 4 * 1024 * (4096 * 32 + 32000) / 2
    assert need.working == 2 * 2 * 1024 * 2 * 4096  # 2bsh in 16 bit, in 32 bit with its gradient


def test_a_ring_shares_the_sequence_among_all_devices() -> None:
    one, two = (training_need("ring", LLAMA, Cluster("", n, 1, 2), n * 1024) for n in (4, 8))
    assert one[1:] == two[1:]
    assert one.checkpoints == 4 * 1024 * (4096 * 32 + 32000)
    assert one.working == 2 * 4 * 6 * 1024 * 4096  # 6 blocks of c h, with their gradients


def test_context_grows_with_memory_and_falls_with_the_model() -> None:
    small, large = (Cluster("", 8, gb * 1e9, 8) for gb in (40, 80))
    for scheme in SCHEMES:
        assert longest_context(scheme, LLAMA, small) <= longest_context(scheme, LLAMA, large)
        context = longest_context(scheme, LLAMA, large)
        assert sum(training_need(scheme, LLAMA, large, context)) <= large.memory
        assert sum(training_need(scheme, LLAMA, large, 2 * context)) > large.memory
