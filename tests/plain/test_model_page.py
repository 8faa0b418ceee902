"""The page on the model says what the code does, names all of it, and fits on one page."""

from dataclasses import replace
from math import ceil

import model
import own_runs
import pytest
import tpu
from model import FORMULAS, WORK, constants, page

from ringloom.planner.ir import Pass
from ringloom.planner.kernel_calls import Call
from ringloom.simulator.costs.kernels import Kernels
from ringloom.simulator.costs.terms import TERMS
from ringloom.simulator.hardware import hardware

TEXT = "\n".join(page())
MACHINE = hardware(model.MACHINE)


def test_the_page_names_every_term_and_every_constant_and_is_one_page() -> None:
    assert len(TEXT.splitlines()) <= 120
    assert len(TEXT.split()) <= 1300
    assert all(f"`{name}`" in TEXT for name in TERMS)
    used = constants(MACHINE)
    assert {key.partition(".")[0] for key in used} >= {"peak", "attention", "memory", "intra"}
    assert all(f"| `{key}` | {MACHINE[key]:.4g}" in TEXT for key in used)
    words = ("host", "launch", "causal", "traffic", "head_half", "tile_q", "tile_kv", "blocks")
    assert all(word in FORMULAS for word in words)


@pytest.mark.parametrize("pass_", ["forward", "backward"])
@pytest.mark.parametrize("size", [2**9, 2**13])
@pytest.mark.parametrize("head_dim", [128, 256])
def test_a_call_takes_what_the_formulas_of_the_page_say(
    pass_: Pass, size: int, head_dim: int
) -> None:
    """Full calls whose tokens are whole tiles, by the page and not by the code."""
    work = replace(WORK, heads=32, kv_heads=8, head_dim=head_dim, v_head_dim=head_dim)
    forward = pass_ == "forward"
    flop = 32 * size * size * (4 if forward else 10) * head_dim
    half = MACHINE["attention.head_half"]
    share = MACHINE[f"attention.{pass_}"] * (1 + half / 128) / (1 + half / head_dim)
    queries, keys = 32 * size * head_dim * 2, 8 * size * head_dim * 2
    # q, out and lse, k and v; backward: q, dout, dq and two statistics, k, v and their gradients
    numbers = 4 * 32 * size
    moved = 2 * queries + numbers + 2 * keys
    if not forward:
        moved = 3 * queries + 2 * numbers + 4 * keys
    moved /= MACHINE["memory.bandwidth"]
    tile = MACHINE["attention.tile_q" if forward else "attention.tile_kv"]
    waves = 32 * size / tile / MACHINE["attention.blocks"]
    took = flop / (MACHINE["peak.bfloat16"] * share) + MACHINE["attention.traffic"] * moved
    took = max(took * ceil(waves) / waves, moved)
    took += MACHINE.option("attention.launch", pass_)
    call = Call(range(size), range(size), False)
    ours = Kernels(MACHINE, work, pass_).seconds(call, 32)
    assert ours == pytest.approx(max(took, MACHINE["attention.host"]), rel=1e-6)


def test_causes_of_slow_predictions_for_tpus_are_told_apart() -> None:
    """Hidden messages matter for few tokens, the kernels' rate for many; sums never as much."""
    few, many = (tpu.errors_by_cause("allgather", *at) for at in ((8, 2**13), (8, 2**17)))
    assert few[0] > tpu.MIN_ERROR > few[2]
    assert many[2] > tpu.MIN_ERROR > many[0]
    assert few[1] < few[0]
    assert few[1] < tpu.MIN_ERROR
    assert f"{few[0]:+.0%} | {few[1]:+.0%} | {few[2]:+.0%}" in "\n".join(tpu.section())


def test_what_own_runs_take_beside_dense_attention_does_not_follow_the_memory() -> None:
    every = own_runs.runs()
    beside = {
        (own_runs.CURVES[run.kernel], run.on["memory.bandwidth"]): own_runs.excess_times(run, every)
        for run in every
        if run.pass_ == "both" and own_runs.excess_times(run, every)
    }
    (h200,) = (taken for (kernel, rate), taken in beside.items() if rate > 4e12)
    h100 = beside["fa2", hardware("h100")["memory.bandwidth"]]
    assert h200[0] > h100[0] > 1.5 * beside["cudnn", hardware("h100")["memory.bandwidth"]][0]
    assert h200[1] < 0.7 * h100[1]
    far = [run for run in every if abs(run.error) > own_runs.LIMIT]
    text = "\n".join(own_runs.section())
    assert all(f"{run.chip}, {own_runs.describe(run)}, {run.kernel}" in text for run in far)
