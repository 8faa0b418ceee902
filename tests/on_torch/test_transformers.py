"""A Hugging Face LLaMA over emitted programs: loss and gradients are the single device's."""

from threading import Lock
from types import ModuleType
from typing import Any

import pytest

import ringloom as rl
from planner.errors import RingloomError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from in_memory.network import Network  # noqa: E402
from rank_threads import in_threads, load  # noqa: E402  only where torch is
from runtimes import huggingface  # noqa: E402  only where transformers is

SEQ, BATCH, VOCABULARY = 26, 2, 31
ONE_AT_A_TIME = Lock()  # weights are drawn from the one random state of all threads
TINY = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "use_cache": False,
}


def emitted(
    mask: rl.Mask | None = None,
    ranks: int = 1,
    heads: int = 4,
    schedule: str = "zigzag",
    scale: float | None = None,
    **how: Any,
) -> ModuleType:
    sizes = {"seq": SEQ, "heads": heads, "kv_heads": 2, "head_dim": 4, "scale": scale}
    work = rl.Workload(**sizes, mask=mask or rl.Causal(), dtype="float64")
    return load(rl.emit(rl.plan(schedule, work, ranks, pass_="both"), "torch", **how))


def llama(attention: str, **changes: Any) -> Any:
    """The same random model for every attention, in float64."""
    config = transformers.LlamaConfig(**TINY | changes, attn_implementation=attention)
    with ONE_AT_A_TIME:
        torch.manual_seed(11)
        return transformers.LlamaForCausalLM(config).double()


def text() -> tuple[Any, Any]:
    """Tokens and the tokens that follow them; the last one of a row has none."""
    random = torch.Generator().manual_seed(2)
    tokens = torch.randint(VOCABULARY, (BATCH, SEQ + 1), generator=random)
    return tokens[:, :-1], tokens[:, 1:]


def trained(model: Any, at: Any, positions: Any, **more: Any) -> dict[str, Any]:
    """Loss and gradients of some tokens; the loss counts in shares of all tokens."""
    tokens, targets = text()
    loss = model(
        input_ids=tokens[:, at],
        position_ids=positions,
        labels=targets[:, at],
        shift_labels=targets[:, at].contiguous(),
        num_items_in_batch=targets.numel(),
        **more,
    ).loss
    loss.backward()
    return {"loss": loss.detach()} | {n: p.grad for n, p in model.named_parameters()}


def assert_the_same(parts: list[dict[str, Any]], truth: dict[str, Any]) -> None:
    for name, right in truth.items():
        # Logits are rounded to 32 bits before the loss.
        result = sum(part[name] for part in parts)
        torch.testing.assert_close(result, right, rtol=0, atol=5e-6 if name == "loss" else 1e-7)


@pytest.fixture(scope="module")
def truth() -> dict[str, Any]:
    """The single-device run by transformers' own attention."""
    return trained(llama("sdpa"), slice(None), torch.arange(SEQ)[None])


def sharded(program: ModuleType, name: str, tables: Any = None, **changes: Any) -> list[Any]:
    """The run on all ranks of a program, each with a registered name and a model of its own."""

    def body(group: Any) -> dict[str, Any]:
        rank = group.rank()
        at = program.positions(*((rank,) if tables is None else (rank, tables)))
        own = rl.transformers_attention(program, f"{name}-{rank}", group=group)
        more = {} if tables is None else {"tables": tables}
        return trained(llama(own, **changes), at, torch.as_tensor(at)[None], **more)

    return in_threads(program.RANKS, body)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_llama_on_several_ranks_is_the_llama_on_one(ranks: int, truth: dict[str, Any]) -> None:
    assert_the_same(sharded(emitted(ranks=ranks), f"sharded-{ranks}"), truth)


def test_one_call_shards_a_batch(truth: dict[str, Any]) -> None:
    program, (tokens, _) = emitted(ranks=2), text()

    def body(group: Any) -> dict[str, Any]:
        name = rl.transformers_attention(program, f"batch-{group.rank()}", group=group)
        model = llama(name)
        loss = model(**rl.shard_batch(program, tokens, group=group)).loss
        loss.backward()
        return {"loss": loss.detach()} | {n: p.grad for n, p in model.named_parameters()}

    plain = llama("sdpa")
    loss = plain(input_ids=tokens, labels=tokens).loss
    loss.backward()
    right = {"loss": loss.detach()} | {n: p.grad for n, p in plain.named_parameters()}
    assert_the_same(in_threads(2, body), right)


def test_a_dynamic_program_takes_tables_from_the_call(truth: dict[str, Any]) -> None:
    program = emitted(rl.Full(), ranks=2, dynamic=True)
    work = rl.Workload(seq=SEQ, heads=4, kv_heads=2, head_dim=4, dtype="float64")
    plans = rl.plan("striped", work, 2, pass_="both")
    tables = program.Tables(rl.tables(plans, "torch"))
    assert_the_same(sharded(program, "dynamic", tables), truth)


def test_gradient_checkpointing_changes_nothing(truth: dict[str, Any]) -> None:
    program = emitted(ranks=1)

    def body(group: Any) -> dict[str, Any]:
        model = llama(rl.transformers_attention(program, "checkpointing", group=group))
        model.activation_checkpointing_enable({"use_reentrant": False})
        return trained(model.train(), slice(None), torch.arange(SEQ)[None])

    assert_the_same(in_threads(1, body), truth)


def test_packed_documents_count_from_their_first_token_as_packing_does() -> None:
    program = emitted(rl.Causal() & rl.Documents((10, 16)), ranks=2)
    restarted = torch.cat([torch.arange(10), torch.arange(16)])[None]
    right = trained(llama("sdpa"), slice(None), restarted)

    def body(group: Any) -> dict[str, Any]:
        at = program.positions(group.rank())
        name = rl.transformers_attention(program, f"packed-{group.rank()}", group=group)
        return trained(llama(name), at, restarted[:, at])

    assert_the_same(in_threads(2, body), right)


def test_a_sliding_window_of_the_plan_serves_a_model_with_that_window() -> None:
    options = {**TINY, "sliding_window": 7}
    program = emitted(rl.Window(6), ranks=1)

    def mistral(attention: str) -> Any:
        config = transformers.MistralConfig(**options, attn_implementation=attention)
        torch.manual_seed(11)
        return transformers.MistralForCausalLM(config).double()

    def body(group: Any) -> dict[str, Any]:
        name = rl.transformers_attention(program, "sliding", group=group)
        return trained(mistral(name), slice(None), torch.arange(SEQ)[None])

    right = trained(mistral("sdpa"), slice(None), torch.arange(SEQ)[None])
    assert_the_same(in_threads(1, body), right)


# ---- what is refused


@pytest.fixture(scope="module")
def alone() -> Any:
    """A group of one rank."""
    return Network(1).group(0)


def called(alone: Any, program: ModuleType, model: Any = None, **more: Any) -> None:
    """A forward pass through a program, on one rank."""
    name = rl.transformers_attention(program, "refusals", group=alone)
    tokens, at = text()[0], torch.arange(SEQ)[None]
    (model or llama)(name)(input_ids=tokens, **{"position_ids": at} | more)


def test_padding_and_masks_of_the_caller_are_refused(alone: Any) -> None:
    program = emitted()
    called(alone, program, attention_mask=torch.ones(BATCH, SEQ))
    padded = torch.ones(BATCH, SEQ)
    padded[1, :3] = 0
    with pytest.raises(RingloomError, match="padding hides 3 tokens"):
        called(alone, program, attention_mask=padded)
    with pytest.raises(RingloomError, match=r"a mask \[2, 1, 26, 26\] besides the plan's"):
        called(alone, program, attention_mask=torch.zeros(BATCH, 1, SEQ, SEQ))


def test_dropout_in_training_is_refused(alone: Any) -> None:
    def model(name: str) -> Any:
        return llama(name, attention_dropout=0.25).train()

    with pytest.raises(RingloomError, match=r"dropout 0\.25 in attention is not expressible"):
        called(alone, emitted(), model)


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (rl.Full(), "the model is causal, the plan's mask is full"),
        (rl.Window(6), "the model is causal, the plan's mask is window:6"),
        (rl.Prefix(4), "the model is causal, the plan's mask is prefix:4"),
        (rl.BlockCausal(4), "the model is causal, the plan's mask is block-causal:4"),
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

    with pytest.raises(RingloomError, match="sliding window of 5, the plan's mask is causal"):
        called(alone, emitted(), model)


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
        more = {"tables": program.Tables(rl.tables(plans, "torch"))}
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
    with pytest.raises(RingloomError, match="says it is bidirectional, but its mask is causal"):
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

    with pytest.raises(RingloomError, match="BloomModel does not take an attention by its name"):
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
    with pytest.raises(RingloomError, match=r"scales scores by 0\.3535\d+, the plan by 0\.5"):
        called(alone, emitted(), lambda name: llama(name, head_dim=8))
    with pytest.raises(RingloomError, match=r"scales scores by 0\.5, the plan by -0\.5"):
        called(alone, emitted(scale=-0.5))
    with pytest.raises(RingloomError, match=r"are \[\[0, 0, 1, 1\]\] ..., but its 26 tokens"):
        called(alone, emitted(), position_ids=torch.arange(SEQ)[None] // 2)


def test_positions_are_looked_at_again_when_they_change(alone: Any) -> None:
    name = rl.transformers_attention(emitted(), "again", group=alone)
    model, tokens, at = llama(name), text()[0], torch.arange(SEQ)[None]
    for right in (at, at, at.clone()):
        model(input_ids=tokens, position_ids=right)
    for wrong in (at + 1, at.add_(1)):
        with pytest.raises(RingloomError, match=r"are \[\[1, 2, 3, 4\]\]"):
            model(input_ids=tokens, position_ids=wrong)


@pytest.mark.parametrize("name", ["softcap", "s_aux", "cu_seq_lens_q"])
def test_what_a_plan_cannot_express_is_refused_by_name(alone: Any, name: str) -> None:
    q, kv = torch.zeros(1, 4, SEQ, 4), torch.zeros(1, 2, SEQ, 4)
    asked = huggingface.Adapter(emitted(), alone, False)
    asked.attend(None, q, kv, kv, None, **{name: None})
    with pytest.raises(RingloomError, match=f"{name} in attention is not expressible"):
        asked.attend(None, q, kv, kv, None, **{name: 30.0})


def test_names_of_transformers_and_other_modules_are_refused(alone: Any) -> None:
    for name in ("sdpa", "eager"):
        with pytest.raises(RingloomError, match=f"has an attention '{name}' already"):
            rl.transformers_attention(emitted(), name)
    with pytest.raises(RingloomError, match="is no emitted program"):
        rl.transformers_attention(torch, "torch")
    with pytest.raises(RingloomError, match="takes tables: call the model with tables="):
        called(alone, emitted(dynamic=True))
