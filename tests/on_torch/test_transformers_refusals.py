"""Hugging Face models are refused attention that the plan does not express."""

from types import ModuleType
from typing import Any

import pytest

import ringloom as rl
from ringloom.planner.errors import RingloomError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from in_memory.network import Network  # noqa: E402
from rank_threads import load  # noqa: E402  only where torch is
from ringloom.runtimes import huggingface  # noqa: E402  only where transformers is
from tiny_llama import (  # noqa: E402
    BATCH,
    SEQ,
    TINY,
    VOCABULARY,
    emitted,
    llama,
    sharded,
    text,
)


@pytest.fixture(scope="module")
def alone() -> Any:
    """A group of one rank."""
    return Network(1).group(0)


def called(
    alone: Any, program: ModuleType, model: Any = None, name: str = "refusals", **more: Any
) -> None:
    """A forward pass through a program, on one rank."""
    rl.transformers_attention(program, name, group=alone)
    tokens, at = text()[0], torch.arange(SEQ)[None]
    (model or llama)(name)(input_ids=tokens, **{"position_ids": at} | more)


def test_padding_and_masks_of_the_caller_are_refused(alone: Any) -> None:
    program = emitted()
    called(alone, program, attention_mask=torch.ones(BATCH, SEQ))
    padded = torch.ones(BATCH, SEQ)
    padded[1, :3] = 0
    with pytest.raises(RingloomError, match="padding masks 3 tokens"):
        called(alone, program, attention_mask=padded)
    with pytest.raises(RingloomError, match=r"attention_mask \[2, 1, 26, 26\] is not supported"):
        called(alone, program, attention_mask=torch.zeros(BATCH, 1, SEQ, SEQ))


def test_dropout_in_training_is_refused(alone: Any) -> None:
    def model(name: str) -> Any:
        return llama(name, attention_dropout=0.25).train()

    with pytest.raises(RingloomError, match=r"dropout 0\.25 in attention is not supported"):
        called(alone, emitted(), model)


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (rl.Full(), "the model is causal, but the plan's mask is full"),
        (rl.Window(6), "the model is causal, but the plan's mask is window:6"),
        (rl.Prefix(4), "the model is causal, but the plan's mask is prefix:4"),
        (rl.BlockCausal(4), "the model is causal, but the plan's mask is block-causal:4"),
        (rl.Slices(((0, 9, 0, 9, "causal"),)), "the plan's mask is slices:0,9,0,9,causal"),
    ],
)
def test_another_mask_than_the_model_s_is_refused(alone: Any, mask: rl.Mask, said: str) -> None:
    with pytest.raises(RingloomError, match=said):
        called(alone, emitted(mask))
    name = rl.transformers_attention(emitted(mask), "meant", group=alone, any_mask=True)
    llama(name)(input_ids=text()[0])


def test_another_sliding_window_is_refused(alone: Any) -> None:
    def model(name: str) -> Any:
        config = transformers.MistralConfig(**TINY, sliding_window=5, attn_implementation=name)
        return transformers.MistralForCausalLM(config).double()

    with pytest.raises(RingloomError, match="sliding window of 5, but the plan's mask is causal"):
        called(alone, emitted(), model)
    llama("refusals")(input_ids=text()[0])  # another model is not refused for the first one


def test_a_window_of_no_layer_is_no_window(alone: Any) -> None:
    sizes = {"num_experts": 2, "num_experts_per_tok": 1, "shared_expert_intermediate_size": 8}

    def qwen(attention: str) -> Any:
        config = transformers.Qwen2MoeConfig(**TINY, **sizes, attn_implementation=attention)
        assert config.sliding_window == 0
        return transformers.Qwen2MoeForCausalLM(config)

    called(alone, emitted(), qwen)


def test_keys_of_other_tokens_than_the_queries_are_refused(alone: Any) -> None:
    cache = llama("sdpa")(input_ids=text()[0][:, :4], use_cache=True).past_key_values
    with pytest.raises(RingloomError, match=r"30 keys and 26 queries.*neither a cache"):
        called(alone, emitted(), past_key_values=cache)
    with pytest.raises(
        RingloomError, match=r"gives rank [01] queries and keys of different tokens"
    ):
        sharded(emitted(ranks=2, schedule="ring", kv_seq=2 * SEQ), "other-keys")


def test_losses_that_are_no_sums_over_ranks_are_refused(alone: Any) -> None:
    asked = huggingface.Adapter(emitted(ranks=2), alone, False)
    q, kv = torch.zeros(1, 4, 13, 4), torch.zeros(1, 2, 13, 4)
    with pytest.raises(RingloomError, match="the router loss is not a sum over ranks"):
        asked.attend(None, q, kv, kv, None, output_router_logits=True)

    def bert(attention: str) -> Any:
        sizes = {key: TINY[key] for key in ("vocab_size", "hidden_size", "num_attention_heads")}
        more = {"num_hidden_layers": 1, "attention_probs_dropout_prob": 0.0}
        config = transformers.BertConfig(**sizes, **more, attn_implementation=attention)
        return transformers.BertForMaskedLM(config)

    work = rl.Workload(SEQ, heads=4, head_dim=4, mask=rl.Full())
    program = load(rl.emit(rl.plan("ring", work, 1), "torch"))
    batch = rl.shard_batch(program, text()[0], group=alone)
    with pytest.raises(RingloomError, match="of next tokens, but the model is bidirectional"):
        called(alone, program, bert, **{k: batch[k] for k in ("labels", "shift_labels")})


EXPERTS = {**TINY, "num_local_experts": 2}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("config", "options", "said"),
    [
        ("Llama4TextConfig", {"head_dim": 4, "attention_chunk_size": 8}, "with chunked_overlay"),
        ("PhimoeConfig", {"sliding_window": 7}, "sliding window of 7"),  # attention is not told
    ],
)
def test_masks_that_the_plan_s_is_not_compared_with_are_refused(
    alone: Any, config: str, options: dict[str, int], said: str, dynamic: bool
) -> None:
    def model(name: str) -> Any:
        made = getattr(transformers, config)(**EXPERTS, **options, attn_implementation=name)
        return transformers.AutoModelForCausalLM.from_config(made).double()

    program, more = emitted(dynamic=dynamic), dict[str, Any]()
    if dynamic:
        work = rl.Workload(seq=SEQ, heads=4, kv_heads=2, head_dim=4, dtype="float64")
        plans = rl.plan("zigzag", work, 1, pass_="both")
        more = {"tables": program.Tables(rl.mask_tables(plans, "torch"))}
    with pytest.raises(RingloomError, match=said):
        called(alone, program, model, **more)


def test_an_attention_that_contradicts_its_model_s_mask_is_refused(alone: Any) -> None:
    """Layers of BigBird's decoder say that they are not causal, and are given a causal mask."""
    name = rl.transformers_attention(emitted(rl.Full()), "contradictory", group=alone)
    sizes = {"vocab_size": VOCABULARY, "d_model": 16, "decoder_ffn_dim": 24, "decoder_layers": 1}
    heads = {"decoder_attention_heads": 4, "attn_implementation": name}
    model = transformers.BigBirdPegasusForCausalLM(
        transformers.BigBirdPegasusConfig(**sizes, **heads)
    )
    with pytest.raises(RingloomError, match="module is bidirectional, but its mask is causal"):
        model.double()(input_ids=text()[0])


def test_a_decoder_with_a_mask_for_its_cross_attention_is_taken(alone: Any) -> None:
    def bart(attention: str) -> Any:
        sizes = {"vocab_size": VOCABULARY, "d_model": 16, "decoder_ffn_dim": 24}
        heads = {"decoder_layers": 1, "decoder_attention_heads": 4}
        config = transformers.BartConfig(**sizes, **heads, attn_implementation=attention)
        torch.manual_seed(11)
        return transformers.BartForCausalLM(config).double().eval()

    ours = bart(rl.transformers_attention(emitted(), "decoder", group=alone))
    results = (model(input_ids=text()[0]).logits for model in (ours, bart("sdpa")))
    torch.testing.assert_close(*results, rtol=0, atol=1e-12)


def test_a_window_that_attention_is_not_told_is_refused_whichever_mask_comes_last(
    alone: Any,
) -> None:
    utilities = transformers.masking_utils
    asked = huggingface.Adapter(emitted(), alone, False)
    q, kv = torch.zeros(1, 4, SEQ, 4), torch.zeros(1, 2, SEQ, 4)
    window = {"local_size": 5, "mask_function": utilities.sliding_window_causal_mask_function(5)}
    whole = {"mask_function": utilities.causal_mask_function}
    asked.refuse_mask(**window)
    asked.refuse_mask(**whole)
    with pytest.raises(RingloomError, match="causal with a sliding window of 5"):
        asked.attend(None, q, kv, kv, None)


def test_models_with_an_attention_of_their_own_are_refused(alone: Any) -> None:
    def bloom(name: str) -> Any:
        sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "n_layer": 1, "n_head": 4}
        config = transformers.BloomConfig(**sizes, attn_implementation=name)
        return transformers.BloomForCausalLM(config).double()

    with pytest.raises(RingloomError, match="BloomModel does not support attn_implementation"):
        called(alone, emitted(), bloom)


def test_a_window_with_two_sides_is_refused(alone: Any) -> None:
    q, kv = torch.zeros(1, 4, SEQ, 4), torch.zeros(1, 2, SEQ, 4)
    asked = huggingface.Adapter(emitted(rl.Window(3, None)), alone, False)
    with pytest.raises(RingloomError, match="bidirectional with a sliding window of 4"):
        asked.attend(None, q, kv, kv, None, is_causal=False, sliding_window=4)


def test_images_that_see_all_of_themselves_are_refused(alone: Any) -> None:
    model = llama(rl.transformers_attention(emitted(), "images", group=alone))
    inputs = {"inputs_embeds": torch.zeros(1, SEQ, 16), "attention_mask": None}
    images = torch.arange(SEQ)[None] // 5
    with pytest.raises(RingloomError, match="with blockwise_overlay, or_masks, which cannot"):
        transformers.masking_utils.create_causal_mask(
            model.config, **inputs, past_key_values=None, block_sequence_ids=images
        )


def test_other_heads_scales_and_lengths_are_refused_with_numbers(alone: Any) -> None:
    with pytest.raises(ValueError, match=r"\[2, 4, 13, 4\].*\[2, 2, 13, 4\]"):
        sharded(emitted(heads=2, ranks=2, schedule="ulysses"), "other-heads")
    with pytest.raises(RingloomError, match=r"scales scores by 0\.3535\d+, but the plan by 0\.5"):
        called(alone, emitted(), lambda name: llama(name, head_dim=8))
    with pytest.raises(RingloomError, match=r"scales scores by 0\.5, but the plan by -0\.5"):
        called(alone, emitted(scale=-0.5))
    with pytest.raises(RingloomError, match="entry 1 is 0, but the token is at 1"):
        called(alone, emitted(), position_ids=torch.arange(SEQ)[None] // 2)


def test_positions_are_looked_at_again_when_they_change(alone: Any) -> None:
    name = rl.transformers_attention(emitted(), "again", group=alone)
    model, tokens, at = llama(name), text()[0], torch.arange(SEQ)[None]
    for right in (at, at, at.clone()):
        model(input_ids=tokens, position_ids=right)
    for wrong in (at + 1, at.add_(1)):
        with pytest.raises(RingloomError, match="entry 0 is 1, but the token is at 0"):
            model(input_ids=tokens, position_ids=wrong)


@pytest.mark.parametrize("name", ["softcap", "s_aux"])
def test_what_a_plan_cannot_express_is_refused_by_name(alone: Any, name: str) -> None:
    q, kv = torch.zeros(1, 4, SEQ, 4), torch.zeros(1, 2, SEQ, 4)
    asked = huggingface.Adapter(emitted(), alone, False)
    asked.attend(None, q, kv, kv, None, **{name: None})
    with pytest.raises(RingloomError, match=f"{name} in attention is not supported by plans"):
        asked.attend(None, q, kv, kv, None, **{name: 30.0})


def test_names_of_transformers_and_other_modules_are_refused(alone: Any) -> None:
    for name in ("sdpa", "eager"):
        with pytest.raises(RingloomError, match=f"has an attention '{name}' already"):
            rl.transformers_attention(emitted(), name)
    with pytest.raises(RingloomError, match="is not an emitted program"):
        rl.transformers_attention(torch, "torch")
    with pytest.raises(RingloomError, match="is not an emitted program"):
        rl.shard_batch(torch, torch.zeros(1, 2))
    with pytest.raises(RingloomError, match="ids and labels must be of type Tensor, not 3"):
        rl.shard_batch(emitted(), 3)
    with pytest.raises(RingloomError, match="takes tables: call the model with tables="):
        called(alone, emitted(dynamic=True))
