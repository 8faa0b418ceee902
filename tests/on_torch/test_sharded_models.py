"""Hugging Face models that ranks would run wrongly on their shards are refused."""

from typing import Any

import pytest

import ringloom as rl
from ringloom.planner.errors import RingloomError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from rank_threads import in_threads  # noqa: E402  only where torch is
from ringloom.runtimes import huggingface  # noqa: E402  only where transformers is
from tiny_llama import ONE_AT_A_TIME, VOCABULARY, emitted, text  # noqa: E402


def test_layers_that_mix_tokens_without_attention_are_refused_on_several_ranks() -> None:
    layers = ["linear_attention", "full_attention"]
    config = transformers.Qwen3NextConfig(num_hidden_layers=2, layer_types=layers)
    with pytest.raises(RingloomError, match="Qwen3NextConfig has layers that mix tokens without"):
        huggingface.Adapter(emitted(ranks=2), None, False).refuse_mask(config=config)
    stateful = transformers.FalconH1Config()
    with pytest.raises(RingloomError, match="FalconH1Config has layers that mix tokens without"):
        huggingface.Adapter(emitted(ranks=2), None, False).refuse_mask(config=stateful)
    huggingface.Adapter(emitted(ranks=1), None, False).refuse_mask(config=config)


def bert(attention: str, kind: str = "Bert") -> Any:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24}
    depth = {"num_hidden_layers": 1, "num_attention_heads": 4, "attn_implementation": attention}
    config = getattr(transformers, f"{kind}Config")(**sizes, **depth)
    with ONE_AT_A_TIME:
        torch.manual_seed(11)
        model = getattr(transformers, f"{kind}Model")(config, add_pooling_layer=False)
        return model.double().eval()


def encoded(names: tuple[str, ...], kind: str = "Bert", **own: Any) -> Any:
    """The last states of an encoder on two ranks, which are given these of a shard's inputs."""
    program, (tokens, _) = emitted(rl.Full(), ranks=2, schedule="ring"), text()

    def body(group: Any) -> Any:
        name = rl.transformers_attention(program, f"states-{group.rank()}", group=group, **own)
        batch = rl.shard_batch(program, tokens, group=group)
        return bert(name, kind)(**{key: batch[key] for key in names}).last_hidden_state

    return program.unshard(in_threads(2, body), axis=1)


def test_positions_that_attention_is_not_told_are_refused_on_several_ranks() -> None:
    right, both = bert("sdpa")(text()[0])[0], ("input_ids", "position_ids")
    for own in ({}, {"any_positions": True}):
        torch.testing.assert_close(encoded(both, **own), right, rtol=0, atol=1e-12)
    with pytest.raises(RingloomError, match="BertSelfAttention does not receive position_ids"):
        encoded(("input_ids",))


def test_models_that_count_positions_themselves_are_refused_on_several_ranks() -> None:
    with pytest.raises(RingloomError, match="RobertaModel counts positions itself"):
        encoded(("input_ids", "position_ids"), "Roberta")
    sharded = huggingface.Adapter(emitted(ranks=2), None, False)
    with pytest.raises(RingloomError, match="BartModel counts positions itself"):
        sharded.refuse_mask(config=transformers.BartConfig())
    huggingface.Adapter(emitted(ranks=2), None, False, True).refuse_mask(
        config=transformers.BartConfig()
    )


def test_positions_are_compared_again_for_tables_of_the_same_steps_and_other_tokens() -> None:
    program, sizes = emitted(rl.Full(), ranks=2, dynamic=True), {"heads": 4, "kv_heads": 2}
    work = rl.Workload(seq=26, head_dim=4, mask=rl.Full(), dtype="float64", **sizes)
    plans = (rl.plan(f"ring:layout={name}", work, 2) for name in ("contiguous", "striped"))
    one, other = (program.Tables(rl.mask_tables(plan, "torch")) for plan in plans)
    assert one == other  # in their steps
    assert one.shards["q"][0].tolist() != other.shards["q"][0].tolist()
    asked = huggingface.Adapter(program, None, False)
    at = program.positions(0, one)[None]
    asked.refuse_other_positions(None, at, 0, 26, one, "a model")
    with pytest.raises(RingloomError, match="position_ids of rank 0 have another layout"):
        asked.refuse_other_positions(None, at, 0, 26, other, "a model")
