"""Splits of chips: parameters, memory, flops and bytes by hand, and the ranking."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ringloom as rl
from command_line import CommandLine
from ringloom.advising import costs, memory
from ringloom.advising.costs import Split
from ringloom.advising.model import Model, read_model

H100 = rl.hardware("h100")
SIZES = {  # a shape of our own, small enough to count by hand
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}
# One layer: 64 x 64 for queries and outputs each, 64 x 16 for keys and values each, 3 x 64 x 96.
LAYER = 2 * 4096 + 2 * 1024 + 18432
SMALL = read_model(SIZES)
ONE = Split(tensor=1, context=1, data=1, micro_batches=1)


def config(**changes: Any) -> dict[str, Any]:
    return {key: value for key, value in (SIZES | changes).items() if value is not None}


def shape(family: str, **sizes: int) -> Model:
    width = sizes["hidden_size"]
    return read_model(
        {"model_type": family, "head_dim": width // sizes["num_attention_heads"]} | sizes
    )


@pytest.mark.parametrize(
    ("family", "sizes", "published"),
    [
        ("llama", (4096, 14336, 32, 32, 8, 128256), 8_030_261_248),
        ("llama", (8192, 28672, 80, 64, 8, 128256), 70_553_706_496),
        ("mistral", (4096, 14336, 32, 32, 8, 32000), 7_241_732_096),
        ("qwen2", (3584, 18944, 28, 28, 4, 152064), 7_615_616_512),
    ],
)
def test_parameters_are_as_many_as_published(
    family: str, sizes: tuple[int, ...], published: int
) -> None:
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    names += ("num_key_value_heads", "vocab_size")
    assert shape(family, **dict(zip(names, sizes, strict=True))).parameters() == published


def test_tensor_parallel_ranks_share_matrices_and_repeat_norms() -> None:
    assert SMALL.layer_matrices() == LAYER
    assert SMALL.parameters() == 3 * (LAYER + 128) + 2 * 6400 + 64
    assert SMALL.parameters(2) == 3 * (LAYER // 2 + 128) + 2 * 3200 + 64
    # of four ranks each has a whole KV head, of which there are two
    assert SMALL.layer_matrices(4) == (2 * 4096 + 18432) // 4 + 2 * 512
    assert read_model(config(tie_word_embeddings=True)).parameters() == 3 * (LAYER + 128) + 6464


def test_matrix_products_take_six_flop_per_weight_and_token() -> None:
    """Embeddings are looked up and norms are no matrices: these weights take none."""
    weights = SMALL.parameters() - 6400 - 7 * 64
    assert costs.matrix_flop(SMALL, 1000, ONE, "none") == 6 * weights * 1000
    again = costs.matrix_flop(SMALL, 1000, ONE, "full") - 6 * weights * 1000
    assert again == 2 * 3 * LAYER * 1000
    split = Split(2, 4, 1, micro_batches=5)
    assert costs.matrix_flop(SMALL, 1000, split, "none") == 5 * 250 * 6 * weights // 2


def test_states_of_parameters_under_each_zero() -> None:
    split = Split(tensor=2, context=2, data=4, micro_batches=1)
    own = SMALL.parameters(2)
    assert memory.parameter_bytes(SMALL, split, 0) == 16 * own
    assert memory.parameter_bytes(SMALL, split, 1) == 4 * own + 12 * own // 8
    gathered = LAYER // 2 + 128  # more than half of the vocabulary, 3,200
    assert memory.parameter_bytes(SMALL, split, 3) == 2 * own + 4 * gathered


def test_activations_with_and_without_checkpoints() -> None:
    split = Split(tensor=2, context=4, data=1, micro_batches=3)
    per_token = (4 * 64 + 3 * 96) * 2 // 2  # norms and feed-forward layer, bfloat16, on two ranks
    assert memory.kept_bytes(SMALL, 1000, split, "full") == 3 * 250 * 64 * 2 // 2
    attention = (2 * 4 * 8 + 2 * 1 * 8) * 2 + 4 * 4  # Q and O, K and V, log-sum-exp
    assert memory.kept_bytes(SMALL, 1000, split, "none") == 3 * 250 * (per_token + attention)
    assert memory.work_bytes(SMALL, 1000, split, "none") == 250 * per_token
    assert memory.work_bytes(SMALL, 1000, split, "full") == 2 * 250 * per_token
    assert memory.logit_bytes(SMALL, 1000, split) == 250 * 50 * 4


def test_bytes_of_collectives() -> None:
    split = Split(tensor=4, context=2, data=2, micro_batches=3)
    whole = 3 * 500 * 64 * 2  # bytes of the activations of three micro-batches
    assert costs.tensor_bytes(SMALL, 1000, split, "none") == 3 * 4 * whole * 2 * 3 / 4
    assert costs.tensor_bytes(SMALL, 1000, split, "full") == 3 * 6 * whole * 2 * 3 / 4
    assert costs.tensor_bytes(SMALL, 1000, ONE, "full") == 0
    own = 2 * SMALL.parameters(4)
    assert costs.gradient_bytes(SMALL, split, 0) == 2 * own * 3 / 4
    assert costs.gradient_bytes(SMALL, split, 1) == 2 * own * 3 / 4
    assert costs.gradient_bytes(SMALL, split, 3) == 3 * 3 * own * 3 / 4


def test_gradients_cross_nodes_through_all_ports_of_a_group() -> None:
    machine = H100.changed({"intra.bandwidth": 1e12, "inter.bandwidth": 1e10})
    assert costs.gradient_rate(machine, Split(2, 2, 2, 1)) == 1e12
    assert costs.gradient_rate(machine, Split(2, 4, 2, 1)) == 4e10
    assert costs.gradient_rate(machine, Split(8, 2, 2, 1)) == 1e10


@pytest.mark.parametrize(
    ("changes", "count", "window"),
    [
        ({}, 0, None),
        ({"model_type": "mistral", "sliding_window": 256}, 3, 256),
        ({"model_type": "qwen2", "sliding_window": 256, "use_sliding_window": False}, 0, None),
        ({"model_type": "gemma3_text", "sliding_window": 256, "sliding_window_pattern": 3}, 2, 256),
        (
            {
                "model_type": "qwen3",
                "sliding_window": 256,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention", "full_attention"],
            },
            1,
            256,
        ),
    ],
)
def test_layers_with_a_window(changes: dict[str, Any], count: int, window: int | None) -> None:
    model = read_model(config(**changes))
    assert (model.windowed, model.window) == (count, window)
    masks = [(number, str(mask)) for number, mask in model.masks(model.attention(4096, "causal"))]
    narrow = [(count, "causal & window:255")] if count else []
    assert masks == [(3 - count, "causal")] * (count < 3) + narrow


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"num_local_experts": 8}, "num_local_experts: mixtures of experts are not modelled"),
        ({"kv_lora_rank": 512}, "latent attention"),
        ({"attn_logit_softcapping": 50.0}, "which plans cannot express"),
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not one of llama"),
        ({"text_config": {}}, "save its text_config"),
        ({"hidden_size": None}, "has no hidden_size"),
        ({"intermediate_size": 1.5}, "intermediate_size 1.5 is not a whole number"),
        ({"vocab_size": -1}, "vocab_size -1 is less than 1"),
    ],
)
def test_models_that_cannot_be_counted_are_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(rl.RingloomError, match=why):
        read_model(config(**changes))


def test_rows_are_the_sum_of_simulated_attention_and_counted_parts() -> None:
    advice = rl.advise(SIZES, 8, H100, 4096, global_batch=4 * 4096, matrix_share=0.5)
    assert [row.step_s for row in advice.rows] == sorted(row.step_s for row in advice.rows)
    assert {row.tensor * row.context * row.data for row in advice.rows} == {8}
    row = next(one for one in advice.rows if (one.tensor, one.context) == (2, 4))
    work = rl.Workload(4096, heads=4, kv_heads=1, head_dim=8)
    plans = rl.plan(row.schedules[0], work, 4, pass_="both")
    forward, backward = rl.simulate(plans, H100, tensor_parallel=2).passes
    assert row.micro_batches == 4
    seconds = 4 * 3 * (2 * forward.makespan + backward.makespan)
    assert row.attention_s == pytest.approx(seconds)
    assert row.matrix_s == pytest.approx(row.matrix_flop / (0.5 * H100.peak("bfloat16")))
    assert row.tensor_comm_s == pytest.approx(row.tensor_comm_bytes / H100.links[0].bandwidth)
    parts = row.attention_s + row.matrix_s + row.tensor_comm_s + row.gradient_comm_s
    assert row.step_s == pytest.approx(parts)
    assert row.tokens_per_s == pytest.approx(4 * 4096 / row.step_s)


def test_the_fastest_split_is_what_compare_recommends() -> None:
    advice = rl.advise(SIZES, 4, H100, 8192, global_batch=8192)
    assert rl.advise(SIZES, 4, H100, 8192, global_batch=8192).as_dict() == advice.as_dict()
    best = next(row for row in advice.rows if row.context == 4)
    work = rl.Workload(8192, heads=8, kv_heads=2, head_dim=8)
    rows = rl.compare(work, 4, H100, pass_="both").rows
    assert best.schedules == (rows[0].schedule,)


def test_splits_that_do_not_fit_say_what_they_need() -> None:
    every = rl.advise(SIZES, 8, H100, 4096)
    least = min(row.memory_bytes for row in every.rows)
    tight = rl.advise(SIZES, 8, H100, 4096, memory=1.5 * least)
    assert 0 < len(tight.rows) < len(every.rows)
    assert all(row.memory_bytes <= 1.5 * least for row in tight.rows)
    assert any("needs" in one.reason for one in tight.refused)
    with pytest.raises(rl.PlanError, match="no split of 8 h100 is possible: 4 x 2 x 1: needs"):
        rl.advise(SIZES, 8, H100, 4096, memory=1.0)


def test_degrees_that_do_not_divide_are_refused_by_name() -> None:
    odd = config(num_attention_heads=6, num_key_value_heads=6, head_dim=8)
    reasons = [one.reason for one in rl.advise(odd, 8, H100, 4096, global_batch=4096).refused]
    assert (
        "tensor parallelism of 4 does not divide 6 heads and 6 KV heads: use 1, 2, 3, 6" in reasons
    )
    assert any("data parallelism of 8 does not divide the 1 sequence" in r for r in reasons)
    with pytest.raises(rl.RingloomError, match="sequence length 4096: use 8192 or 12288"):
        rl.advise(SIZES, 8, H100, 4096, global_batch=10000)
    with pytest.raises(rl.RingloomError, match="zero must be 0, 1 or 3, not 2"):
        rl.advise(SIZES, 8, H100, 4096, zero=2)  # type: ignore[arg-type]


def test_the_command_prints_a_table_and_the_next_command(
    tmp_path: Path, ringloom: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    odd = config(num_attention_heads=3, num_key_value_heads=3, head_dim=16)  # on no two ranks
    Path("config.json").write_text(json.dumps(odd))
    words = ["advise", "config.json", "--gpus", "4", "--hardware", "h100", "--seq", "8k"]
    words += ["--global-batch", "8k"]
    shown, document = ringloom(*words), ringloom.json(*words)
    first = document["rows"][0]
    degrees = f"TP {first['tensor']}, CP {first['context']}, DP {first['data']}"
    assert f"Use {degrees}:" in shown
    assert {"predicted", "counted"} <= {*shown.split()}
    assert "not modelled: pipeline" in shown
    assert max(map(len, shown.splitlines()[:-1])) <= 80  # a command is not wrapped
    numbers = {key for key in first if key.endswith(("_s", "_bytes", "_flop"))}
    assert numbers == document["columns"].keys()
    assert shown.splitlines()[-1] == document["emit"]
    ringloom(*document["emit"].split()[1:])


def test_windows_of_models_change_their_attention() -> None:
    wide = rl.advise(config(model_type="mistral"), 1, H100, 8192)
    narrow = rl.advise(config(model_type="mistral", sliding_window=256), 1, H100, 8192)
    assert narrow.rows[0].attention_s < wide.rows[0].attention_s
    masks = replace(SMALL, windowed=1, window=256).masks(SMALL.attention(8192, "full"))
    assert [number for number, _ in masks] == [2, 1]
