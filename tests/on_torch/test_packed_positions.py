"""Hugging Face models over documents that are packed: the plan's mask is the model's, or refused.

What a message advises is done, and is exact.
"""

import re
from types import ModuleType
from typing import Any

import pytest

import ringloom as rl
from ringloom.planner.errors import RingloomError
from ringloom.planner.masks import parse

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from in_memory.network import Network  # noqa: E402
from rank_threads import in_threads  # noqa: E402  only where torch is
from ringloom.runtimes import huggingface  # noqa: E402  only where transformers is
from tiny_llama import BATCH, SEQ, TINY, emitted, llama, text, trained  # noqa: E402

PACKED = torch.cat([torch.arange(10), torch.arange(16)])[None]
WHOLE = torch.arange(SEQ)[None]
DOCUMENTS = parse("causal & documents:10,16")


@pytest.fixture(scope="module")
def alone() -> Any:
    """A group of one rank."""
    return Network(1).group(0)


def logits(model: Any, positions: Any) -> Any:
    return model(input_ids=text()[0], position_ids=positions).logits


def refusal(program: ModuleType, group: Any, positions: Any, **how: Any) -> str:
    """The message with which a llama over a program is refused these positions of its tokens."""
    name = rl.transformers_attention(program, f"packed-{group.rank()}", group=group, **how)
    tokens = text()[0][:, : positions.shape[1]]
    with pytest.raises(RingloomError) as caught:
        llama(name)(input_ids=tokens, position_ids=positions)
    return str(caught.value)


def test_positions_that_begin_again_name_a_plan_that_is_exact(alone: Any) -> None:
    said = refusal(emitted(), alone, PACKED)
    assert "entry 10 is 0, but the token is at 10" in said
    advised = parse(re.findall("mask is '(.*?)'", said)[0])
    assert advised == DOCUMENTS
    ours = llama(rl.transformers_attention(emitted(advised), "advised", group=alone))
    right = logits(llama("sdpa"), PACKED)
    torch.testing.assert_close(logits(ours, PACKED), right, rtol=0, atol=1e-6)
    assert (logits(llama("sdpa"), WHOLE) - right).abs().max() > 1e-3


def test_a_sliding_window_is_part_of_the_plan_that_is_named(alone: Any) -> None:
    config = transformers.MistralConfig(**TINY, sliding_window=7)
    config._attn_implementation = rl.transformers_attention(
        emitted(rl.Window(6)), "windows", group=alone
    )
    with pytest.raises(RingloomError, match="model's mask is 'window:6 & documents:10,16'"):
        logits(transformers.MistralForCausalLM(config).double(), PACKED)


def test_other_documents_than_those_of_the_plan_are_refused(alone: Any) -> None:
    program = emitted(parse("causal & documents:10,10,6"))
    said = refusal(program, alone, PACKED)
    assert "entry 20 is 10, but the token is at 20" in said
    assert "'causal & documents:10,16', but the plan's is causal & documents:10,10,6" in said
    many = torch.cat([torch.arange(2)] * 13)[None]
    assert "'causal & documents:2,2,2,2,2,2,2,2,...'" in refusal(program, alone, many)


def test_a_plan_of_documents_is_refused_positions_that_go_on(alone: Any) -> None:
    program = emitted(DOCUMENTS)
    said = refusal(program, alone, WHOLE)
    assert "do not restart" in said
    assert "entry 10 is 10, but the token is at 10, and its document begins at 10" in said
    ours = llama(rl.transformers_attention(program, "meant", group=alone, any_mask=True))
    assert torch.isfinite(logits(ours, WHOLE)).all()


def test_positions_of_a_mask_without_documents_do_not_begin_again(alone: Any) -> None:
    """Rows of a prefix have boxes of their own, which are no documents."""
    program = emitted(rl.Prefix(10))
    said = refusal(program, alone, PACKED, any_mask=True)
    assert "restart: entry 10 is 0" in said


def test_rows_that_are_packed_differently_are_refused(alone: Any) -> None:
    rows = torch.cat([PACKED, WHOLE])
    assert len(rows) == BATCH
    for mask in (DOCUMENTS, None):
        said = refusal(emitted(mask), alone, rows)
        assert "differ from row to row: entry 10 is 0 in row 0 and 10 in row 1" in said


def test_the_causes_are_told_apart_on_several_ranks() -> None:
    program, ring = emitted(ranks=2), emitted(ranks=2, schedule="ring")

    def body(group: Any) -> list[str]:
        at, rank = program.positions(group.rank()), group.rank()
        return [
            refusal(program, group, PACKED[:, at]),
            refusal(program, group, WHOLE),
            refusal(emitted(rl.Causal() & rl.Documents((7, 19)), ranks=2), group, PACKED),
            refusal(program, group, WHOLE[:, ring.positions(rank)]),
        ]

    for rank, (again, whole, packed, other) in enumerate(in_threads(2, body)):
        assert ("restart" in again) == (rank == 1)  # 0 has tokens 0 to 6, then 10 to 15 of 20
        assert f"'causal & documents:10,16' as far as rank {rank} has their tokens" in again
        for said in (whole, packed):
            assert f"rank {rank} has all {SEQ} tokens of the sequence" in said
            assert "shard_batch" in said
        assert "have another layout" in other
        assert ("Either the model's mask is" in other) == (rank == 0)  # 0 to 6, then 7 to 12


@pytest.mark.parametrize("schedule", ["ring", "zigzag"])
def test_shards_of_as_many_tokens_as_planned_are_of_a_longer_sequence(schedule: str) -> None:
    """Where any length goes, and positions say so; the first one of a ring is in order from 0."""
    program, tokens = emitted(ranks=2, schedule=schedule, seq=12, kv_seq=12), text()[0][:, :24]

    def body(group: Any) -> Any:
        at = program.positions(group.rank(), 24)
        assert len(at) == program.PLAN["seq"]
        name = rl.transformers_attention(program, f"longer-{group.rank()}", group=group)
        return llama(name)(input_ids=tokens[:, at], position_ids=at[None]).logits.detach()

    logits = program.unshard(in_threads(2, body), axis=1)
    right = llama("sdpa")(input_ids=tokens).logits
    torch.testing.assert_close(logits, right, rtol=0, atol=1e-6)


def test_packed_batches_are_sharded_by_one_call() -> None:
    """Labels of each document's first token are left out, as transformers' collator leaves them."""
    program, labels = emitted(DOCUMENTS, ranks=2), text()[0].clone()
    labels[:, [0, 10]] = huggingface.IGNORED

    def body(group: Any) -> Any:
        name = rl.transformers_attention(program, f"sharded-{group.rank()}", group=group)
        batch = rl.shard_batch(program, text()[0], labels, PACKED, group=group)
        return llama(name)(**batch).loss.detach()

    right = llama("sdpa")(input_ids=text()[0], position_ids=PACKED, labels=labels).loss
    torch.testing.assert_close(sum(in_threads(2, body)), right.detach(), rtol=0, atol=5e-6)


def bigcode(attention: str) -> Any:
    sizes = {"vocab_size": TINY["vocab_size"], "n_embd": 16, "n_layer": 1, "n_head": 4}
    more = {"multi_query": False, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    config = transformers.GPTBigCodeConfig(
        **sizes, **more, use_cache=False, attn_implementation=attention
    )
    torch.manual_seed(11)
    return transformers.GPTBigCodeForCausalLM(config).double()


def test_documents_of_a_model_whose_attention_is_not_told_are_compared(alone: Any) -> None:
    for how in ({}, {"any_positions": True}):
        causal, cut = (
            bigcode(rl.transformers_attention(program, name, group=alone, **how))
            for program, name in (
                (square(rl.Causal()), "untold"),
                (square(DOCUMENTS), "untold-documents"),
            )
        )
        with pytest.raises(RingloomError, match="restart: entry 10 is 0"):
            logits(causal, PACKED)
        with pytest.raises(RingloomError, match="do not restart"):
            logits(cut, WHOLE)
        for model, positions in ((causal, WHOLE), (cut, PACKED)):
            right = logits(bigcode("sdpa"), positions)
            torch.testing.assert_close(logits(model, positions), right, rtol=0, atol=1e-6)


def square(mask: rl.Mask) -> ModuleType:
    """A program of as many KV heads as heads, on one rank."""
    from rank_threads import load

    work = rl.Workload(SEQ, heads=4, head_dim=4, mask=mask, dtype="float64")
    return load(rl.emit(rl.plan("ring", work, 1, pass_="both"), "torch"))


@pytest.mark.parametrize("name", ["cu_seq_lens_q", "cu_seq_lens_k", "seq_idx"])
def test_documents_by_other_arguments_are_refused(alone: Any, name: str) -> None:
    q, kv = torch.zeros(1, 4, SEQ, 4), torch.zeros(1, 2, SEQ, 4)
    asked = huggingface.Adapter(emitted(), alone, False)
    asked.attend(None, q, kv, kv, None, **{name: None})
    with pytest.raises(RingloomError, match=f"{name} is not supported: packed documents"):
        asked.attend(None, q, kv, kv, None, **{name: torch.tensor([0, 10, 26])})


def test_gradients_of_packed_documents_are_compared_by_the_tables_of_a_batch() -> None:
    program = emitted(rl.Full(), ranks=2, dynamic=True)
    sizes = {"seq": SEQ, "heads": 4, "kv_heads": 2, "head_dim": 4, "dtype": "float64"}
    tables = [
        program.Tables(rl.mask_tables(rl.plan("striped", work, 2, pass_="both"), "torch"))
        for work in (rl.Workload(**sizes, mask=mask) for mask in (rl.Causal(), DOCUMENTS))
    ]

    def body(group: Any) -> dict[str, Any]:
        name = rl.transformers_attention(program, f"tables-{group.rank()}", group=group)
        causal, cut = (program.positions(group.rank(), given) for given in tables)
        with pytest.raises(RingloomError, match="but the plan's is that of its tables"):
            trained(llama(name), causal, PACKED[:, causal], tables=tables[0])
        return trained(llama(name), cut, PACKED[:, cut], tables=tables[1])

    right = trained(llama("sdpa"), slice(None), PACKED)
    parts = in_threads(2, body)
    for name, whole in right.items():
        total = sum(part[name] for part in parts)
        torch.testing.assert_close(total, whole, rtol=0, atol=5e-6 if name == "loss" else 1e-7)
