"""Masks of programs: the expression says what the workload says, and the boxes say the same."""

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codegen.assemble import assemble
from codegen.masks import boxes, mask_data, mask_function
from planner.masks import (
    BlockCausal,
    Blocks,
    Causal,
    Chunks,
    Documents,
    Full,
    Global,
    Keys,
    Mask,
    Prefix,
    Slices,
    Tree,
    Varlen,
    Window,
    parse,
)
from planner.masks.slices import KINDS
from planner.workload import Workload
from ruff_check import assert_as_ruff_has_it
from strategies import masks

TOKENS = 60
GRID = Blocks(((1, 0, 1), (0, 1, 1), (1, 1, 0)), 20)
MANY = Documents((1,) * 40 + (20,))
SLICES = Slices(
    tuple((10 * n, 10 * n + 10, 3, 53 + n, kind) for n, kind in enumerate([*KINDS, *KINDS][:6]))
)
TREE = Tree((10, 20, 0, 25, 5), (1, None, 1, 0, 1))
MASKS: list[tuple[Mask, int]] = [
    (Full(), TOKENS),
    (Causal(), TOKENS),
    (Causal(), 40),
    (Window(7), 90),
    (Window(0, 3), TOKENS),
    (Window(None, 4), TOKENS),
    (Window(None, None), TOKENS),
    (Prefix(9), 90),
    (Prefix(9), 40),
    (Global(5), 90),
    (Documents((13, 0, 27, 20)), TOKENS),
    (Documents((13, 7, 40)) & Causal(), 90),
    (Documents((13, 27, 20), (30, 20, 40)), 90),
    (Documents((13, 27, 20), (30, 5, 5)), 40),
    (MANY & Causal(), TOKENS),
    (GRID, TOKENS),
    (GRID, 200),
    (GRID & Causal(), 90),
    (GRID | Documents((13, 27, 20)) & Documents((13, 27, 20), (30, 20, 10)), TOKENS),
    (parse("causal & (window:30 | global:7) | documents:10,50 & prefix:3 | blocks:30:10/01"), 60),
    (parse("causal & (window:30 | global:7)"), 90),
    (Causal() & Chunks(13), TOKENS),
    (BlockCausal(7), 90),
    (Keys(50), 90),
    (SLICES, TOKENS),
    (SLICES & Causal() | Global(3), TOKENS),
    (Varlen((13, 27, 20), (30, 20, 40)), 90),
    (Varlen((13, 27, 20), (10, 20, 10), 2**20, 123456) | Global(2), 40),
    (TREE, TOKENS),
    (TREE & Window(20) | Keys(4), 40),
]


def written(mask: Mask, seq: int, target: str, kv_seq: int = TOKENS) -> tuple[str, Workload]:
    work = Workload(seq=seq, kv_seq=kv_seq, heads=1, mask=mask)
    texts = [mask_data(work, False), mask_function(work, target)]
    return assemble('"""A mask."""', texts, ["allowed", "BOXES"]), work


@pytest.mark.parametrize("target", ["torch", "jax"])
@pytest.mark.parametrize(("mask", "seq"), MASKS, ids=[f"{m}-{s}"[:60] for m, s in MASKS])
def test_the_expression_is_the_mask(mask: Mask, seq: int, target: str) -> None:
    assert_printed_as_evaluated(mask, seq, TOKENS, target)


@pytest.mark.parametrize("target", ["torch", "jax"])
@given(st.data(), st.integers(1, 24), st.integers(1, 24))
def test_any_expression_is_the_mask(
    target: str, data: st.DataObject, seq: int, kv_seq: int
) -> None:
    assert_printed_as_evaluated(data.draw(masks(seq, kv_seq, depth=3)), seq, kv_seq, target)


def assert_printed_as_evaluated(mask: Mask, seq: int, kv_seq: int, target: str) -> None:
    jax = target == "jax"  # by its own module, which sets the devices of the whole process
    library = import_module("jax_devices").jax.numpy if jax else pytest.importorskip("torch")
    text, work = written(mask, seq, target, kv_seq)
    built: Any = ModuleType("mask")
    exec(text, vars(built))
    # XLA compiles each operation for each shape: arrays of other shapes are numpy's.
    arrays = library if target == "torch" or (seq, kv_seq) == (TOKENS, TOKENS) else np
    i = arrays.arange(seq)[:, None] + work.offset
    told = np.asarray(built.allowed(i, arrays.arange(kv_seq)[None, :]))
    np.testing.assert_array_equal(told, work.allowed(range(seq), range(kv_seq)))


@pytest.mark.parametrize(("mask", "seq"), MASKS, ids=[f"{m}-{s}"[:60] for m, s in MASKS])
@pytest.mark.parametrize("free", [False, True])
def test_the_boxes_cover_each_pair_once(mask: Mask, seq: int, free: bool) -> None:
    work = Workload(seq=seq, kv_seq=TOKENS, heads=1, mask=mask)
    i, j = np.arange(seq)[:, None] + work.offset, np.arange(TOKENS)[None, :]
    covered = np.zeros((seq, TOKENS), int)
    for i0, i1, j0, j1, low, high in boxes(work, free):
        covered += (i0 <= i) & (i < i1) & (j0 <= j) & (j < j1) & (low <= j - i) & (j - i <= high)
    np.testing.assert_array_equal(covered, work.allowed(range(seq), range(TOKENS)))


def test_masks_are_written_as_ruff_would_have_them(tmp_path: Path) -> None:
    for number, (mask, seq) in enumerate(MASKS):
        for target in ("torch", "jax"):
            (tmp_path / f"{target}_{number}.py").write_text(written(mask, seq, target)[0])
    assert_as_ruff_has_it(tmp_path)


def test_bounds_without_an_end_are_named_where_any_length_goes() -> None:
    work = Workload(seq=64, mask=Causal())
    assert "(-FAR, FAR, -FAR, FAR, -FAR, 0)," in mask_data(work, True)
    assert "(0, 64, 0, 64, -64, 0)," in mask_data(work, False)
