"""Masks of flex attention: ours there, theirs here."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

import ringloom as rl
from rank_threads import in_threads, load
from ringloom.runtimes.arrays import draw
from ringloom.runtimes.reference import dense
from strategies import masks

TABLES = ["kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices"]
TABLES += ["q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices"]


@st.composite
def works(draw: st.DrawFn) -> rl.Workload:
    seq, kv_seq = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    return rl.Workload(seq, kv_seq, mask=draw(masks(seq, kv_seq)))


@given(works(), st.sampled_from([1, 4, 16, 128]))
def test_a_block_mask_is_what_torch_makes_of_the_definition(work: rl.Workload, size: int) -> None:
    allowed = torch.tensor(work.allowed(range(work.seq), range(work.kv_seq)))
    expected = create_block_mask(
        lambda b, h, i, j: allowed[i, j], 1, 1, work.seq, work.kv_seq, "cpu", size
    )
    block_mask = rl.to_block_mask(work, block_size=size)
    assert block_mask.seq_lengths == expected.seq_lengths
    for name in TABLES:
        assert torch.equal(getattr(block_mask, name), getattr(expected, name)), name
    evaluated = create_block_mask(
        block_mask.mask_mod, 1, 1, work.seq, work.kv_seq, "cpu", size
    )  # torch, asking our mask_mod for every pair
    assert torch.equal(evaluated.to_dense(), expected.to_dense())
    assert torch.equal(evaluated.full_kv_num_blocks, expected.full_kv_num_blocks)


@given(works(), st.sampled_from([1, 4, 16]))
def test_a_block_mask_comes_back_as_a_mask_of_the_same_pairs(work: rl.Workload, size: int) -> None:
    mask = rl.from_block_mask(rl.to_block_mask(work, block_size=size))
    again = rl.Workload(work.seq, work.kv_seq, mask=mask)
    pairs = [w.allowed(range(w.seq), range(w.kv_seq)) for w in (work, again)]
    np.testing.assert_array_equal(*pairs)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("text", ["causal", "full", "causal & documents:100,156", "window:9,3"])
def test_flex_attention_computes_our_mask(text: str) -> None:
    work = rl.Workload(256, heads=2, head_dim=16, mask=text, dtype="float64")
    q, k, v, _ = draw(work, 0)
    out = flex_attention(*map(torch.tensor, (q, k, v)), block_mask=rl.to_block_mask(work))
    np.testing.assert_allclose(out.numpy(), dense.forward(work, q, k, v)[0], atol=1e-12, rtol=0)


def made(rule: str, seq: int = 256, kv_seq: int = 256, batch: int = 1) -> BlockMask:
    mask_mod = eval(f"lambda b, h, i, j: {rule}")
    return create_block_mask(mask_mod, batch, 1, seq, kv_seq, "cpu", 32)


def test_what_others_wrote_becomes_few_slices() -> None:
    assert rl.from_block_mask(made("i >= j")) == rl.Causal()
    assert rl.from_block_mask(made("i + 64 >= j", seq=192)) == rl.Causal()
    assert rl.from_block_mask(made("i + j >= 0")) == rl.Full()
    window = rl.from_block_mask(made("(i >= j) & (i - j <= 40)"))
    assert window == rl.Slices(((0, 41, 0, 41, "causal"), (41, 256, 1, 256, "bi")))
    packed = rl.from_block_mask(made("(i >= j) & (i // 50 == j // 50)"))
    assert len(packed.rows) == 6
    assert rl.to_cu_seqlens(packed).cu_seqlens_q.tolist() == [0, 50, 100, 150, 200, 250, 256]
    nothing = rl.from_block_mask(made("i + j < 0"))
    assert not rl.Workload(256, mask=nothing).allowed(range(256), range(256)).any()


def test_a_mask_of_one_batch_row_is_refused() -> None:
    with pytest.raises(rl.RingloomError, match="batch rows 0 and 1 attend to different keys: pack"):
        rl.from_block_mask(made("(i >= j) & (j < 100 + b)", batch=2))
    assert rl.from_block_mask(made("i >= j", batch=2)) == rl.Causal()


def test_heads_that_differ_are_programs_of_their_groups() -> None:
    """Heads 0 and 2 see a short window, 1 and 3 a longer one; out and gradients of all heads."""
    seq, heads = 24, 4
    block_mask = create_block_mask(
        lambda b, h, i, j: (j <= i) & (i - j < 5 + 6 * (h % 2)), 1, heads, seq, seq, "cpu", 8
    )
    with pytest.raises(
        rl.RingloomError, match=r"heads 0 and 1 attend to different.*heads=\[\.\.\.\]"
    ):
        rl.from_block_mask(block_mask)
    groups = [0, 2], [1, 3]
    masks_of = [rl.from_block_mask(block_mask, heads=group) for group in groups]
    works = [rl.Workload(seq, heads=2, head_dim=4, mask=mask, dtype="float64") for mask in masks_of]
    programs = [load(rl.emit(rl.plan("zigzag", work, 2, pass_="both"), "torch")) for work in works]
    arrays = [torch.tensor(x) for x in draw(replace(works[0], heads=heads, kv_heads=heads), 0)]

    def body(group: Any) -> list[torch.Tensor]:
        *inputs, dout = (programs[0].shard(x, group.rank()) for x in arrays)
        inputs = [x.clone().requires_grad_() for x in inputs]
        out = torch.zeros_like(dout)
        for program, own in zip(programs, groups, strict=True):
            part = program.attention(*(x[:, own] for x in inputs), group=group)
            out = out.index_copy(1, torch.tensor(own), part)
        return [out.detach(), *torch.autograd.grad(out, inputs, dout)]

    results = [programs[0].unshard(parts) for parts in zip(*in_threads(2, body), strict=True)]
    *inputs, dout = arrays
    inputs = [x.requires_grad_() for x in inputs]
    allowed = torch.stack([block_mask.mask_mod(0, h, *grid(seq)) for h in range(heads)])
    dense = torch.nn.functional.scaled_dot_product_attention(*inputs, attn_mask=allowed)
    truth = dense.detach(), *torch.autograd.grad(dense, inputs, dout)
    for result, right in zip(results, truth, strict=True):
        torch.testing.assert_close(result, right, rtol=0, atol=1e-11)


def grid(seq: int) -> list[torch.Tensor]:
    return torch.meshgrid(torch.arange(seq), torch.arange(seq), indexing="ij")


@pytest.mark.parametrize("heads", [[], [4], [-1], [0.5]])
def test_heads_that_a_block_mask_does_not_have_are_refused(heads: list[int]) -> None:
    with pytest.raises(rl.RingloomError, match="heads must be 0 to 0, not"):
        rl.from_block_mask(made("i >= j"), heads=heads)


def test_only_workloads_and_block_masks_are_translated() -> None:
    given: Any = rl.Causal()
    with pytest.raises(rl.RingloomError, match=r"work must be of type Workload, not Causal\(\)"):
        rl.to_block_mask(given)
    with pytest.raises(rl.RingloomError, match="block_mask must be of type BlockMask, not Causal"):
        rl.from_block_mask(given)


def test_a_long_mask_takes_no_dense_matrix() -> None:
    work = rl.Workload(2**20, mask="causal & window:4k")
    block_mask = rl.to_block_mask(work, block_size=1024)
    assert int(block_mask.kv_num_blocks.sum() + block_mask.full_kv_num_blocks.sum()) == 5110
