"""A Hugging Face LLaMA over emitted programs: loss and gradients are the single device's."""

from typing import Any

import pytest

import ringloom as rl
from ringloom.planner.errors import RingloomError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from in_memory.network import Network  # noqa: E402
from rank_threads import in_threads  # noqa: E402  only where torch is
from tiny_llama import SEQ, TINY, emitted, llama, sharded, text, trained  # noqa: E402


def assert_the_same(parts: list[dict[str, Any]], truth: dict[str, Any]) -> None:
    for name, right in truth.items():
        # Logits are rounded to 32 bits before the loss.
        result = sum(part[name] for part in parts)
        torch.testing.assert_close(result, right, rtol=0, atol=5e-6 if name == "loss" else 1e-7)


@pytest.fixture(scope="module")
def truth() -> dict[str, Any]:
    """The single-device run by transformers' own attention."""
    return trained(llama("sdpa"), slice(None), torch.arange(SEQ)[None])


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
    tables = program.Tables(rl.mask_tables(plans, "torch"))
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


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # of torch's own
def test_a_compiled_model_is_the_model(truth: dict[str, Any]) -> None:
    model = llama(rl.transformers_attention(emitted(), "compiled", group=Network(1).group(0)))
    model.compile(backend="aot_eager")
    assert_the_same([trained(model, slice(None), torch.arange(SEQ)[None])], truth)


def test_the_end_of_a_prompt_attends_to_the_keys_of_a_cache() -> None:
    program, alone = emitted(seq=6, kv_seq=SEQ), Network(1).group(0)
    name = rl.transformers_attention(program, "end", group=alone)
    ours, plain, tokens = llama(name), llama("sdpa"), text()[0]
    cache = plain(input_ids=tokens[:, :-6], use_cache=True).past_key_values
    end = ours(input_ids=tokens[:, -6:], past_key_values=cache).logits
    torch.testing.assert_close(end, plain(input_ids=tokens).logits[:, -6:], rtol=0, atol=1e-6)
    with pytest.raises(RingloomError, match=r"do not count the keys of the cache.*; add 20"):
        ours(input_ids=tokens[:, :6])
