"""Masks of programs: the expression says what the workload says, and the boxes say the same."""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from array_libraries import library_of
from ringloom.codegen.frame.assemble import assemble
from ringloom.codegen.frame.masks import boxes, mask_data, mask_function
from ringloom.planner.masks import Causal, Mask, parse
from ringloom.planner.masks.slices import KINDS
from ringloom.planner.workload import Workload
from ruff_check import assert_as_ruff_has_it
from strategies import masks

TOKENS = 60
SLICES = "/".join(f"{10 * n},{10 * n + 10},3,{53 + n},{kind}" for n, kind in enumerate(KINDS))
# Larger ones than are drawn: tables of several lines, each kind of mask, shorter and longer sides.
MASKS = [
    ("full", TOKENS),
    ("causal", 40),
    ("window:7", 90),
    ("window:inf,4 | window:inf,inf", TOKENS),
    ("prefix:9 & global:5", 90),
    ("documents:13,27,20/30,20,40", 90),
    ("documents:" + "1," * 40 + "20 & causal", TOKENS),
    ("blocks:20:101/011/110 | documents:13,27,20 & documents:13,27,20/30,20,10", TOKENS),
    ("causal & (window:30 | global:7) | documents:10,50 & prefix:3 | blocks:30:10/01", 60),
    ("causal & chunks:13 | block-causal:7", 90),
    (f"slices:{SLICES} & causal | global:3", TOKENS),
    ("varlen:13,27,20/10,20,10/1048576,123456 | global:2", 40),
    ("tree:10,20,0,25,5/1,-,1,0,1 & window:20 | keys:4", 40),
]


def written(mask: Mask, seq: int, target: str, kv_seq: int = TOKENS) -> tuple[str, Workload]:
    work = Workload(seq=seq, kv_seq=kv_seq, heads=1, mask=mask)
    texts = [mask_data(work, False), mask_function(work, target)]
    return assemble('"""A mask."""', texts, ["allowed", "BOXES"]), work


@pytest.mark.parametrize("target", ["torch", "jax"])
@given(st.data(), st.integers(1, 24), st.integers(1, 24))
def test_any_expression_is_the_mask(
    target: str, data: st.DataObject, seq: int, kv_seq: int
) -> None:
    assert_printed_as_evaluated(data.draw(masks(seq, kv_seq, depth=3)), seq, kv_seq, target)


def assert_printed_as_evaluated(mask: Mask, seq: int, kv_seq: int, target: str) -> None:
    library = library_of(target)
    text, work = written(mask, seq, target, kv_seq)
    built: Any = ModuleType("mask")
    exec(text, vars(built))
    # XLA compiles each operation for each shape: arrays of other shapes are numpy's.
    arrays = library if target == "torch" or (seq, kv_seq) == (TOKENS, TOKENS) else np
    i = arrays.arange(seq)[:, None] + work.offset
    told = np.asarray(built.allowed(i, arrays.arange(kv_seq)[None, :]))
    np.testing.assert_array_equal(told, work.allowed(range(seq), range(kv_seq)))


@given(st.data(), st.integers(1, 24), st.integers(1, 24), st.booleans())
def test_the_boxes_cover_each_pair_once(
    data: st.DataObject, seq: int, kv_seq: int, free: bool
) -> None:
    work = Workload(seq, kv_seq, heads=1, mask=data.draw(masks(seq, kv_seq)))
    i, j = np.arange(seq)[:, None] + work.offset, np.arange(kv_seq)[None, :]
    covered = np.zeros((seq, kv_seq), int)
    for i0, i1, j0, j1, low, high in boxes(work, free):
        covered += (i0 <= i) & (i < i1) & (j0 <= j) & (j < j1) & (low <= j - i) & (j - i <= high)
    np.testing.assert_array_equal(covered, work.allowed(range(seq), range(kv_seq)))


@pytest.mark.parametrize("target", ["torch", "jax"])
def test_long_masks_are_written_as_ruff_would_have_them(target: str, tmp_path: Path) -> None:
    for number, (text, seq) in enumerate(MASKS):
        assert_printed_as_evaluated(parse(text), seq, TOKENS, target)
        (tmp_path / f"mask_{number}.py").write_text(written(parse(text), seq, target)[0])
    assert_as_ruff_has_it(tmp_path)


def test_bounds_without_an_end_are_named_where_any_length_goes() -> None:
    work = Workload(seq=64, mask=Causal())
    assert "(-FAR, FAR, -FAR, FAR, -FAR, 0)," in mask_data(work, True)
    assert "(0, 64, 0, 64, -64, 0)," in mask_data(work, False)
