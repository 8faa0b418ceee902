"""Table programs of JAX: any verified plan, and tables as an argument."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dense_attention import assert_dense
from jax_devices import Mesh, jax, self_check
from jax_in_numpy import replayed
from ringloom.codegen import emit
from ringloom.codegen.frame import masks
from ringloom.codegen.jax import by_tables, slots, write
from ringloom.codegen.jax.slots import tables
from ringloom.codegen.programs import program_of
from ringloom.planner.errors import PlanError
from ringloom.planner.masks import Causal, Documents, Full, Keys, Mask, Prefix, Window
from ringloom.planner.planning import plan
from ringloom.planner.plans import AnyPlans
from ringloom.planner.workload import Workload
from ringloom.runtimes.arrays import Array, draw

jnp = jax.numpy
WORK = Workload(37, heads=4, kv_heads=2, head_dim=4, mask=Causal(), dtype="float64")
SIDES = "q", "kv", "kv", "q"


def loaded(source: str) -> ModuleType:
    module = ModuleType("emitted")
    exec(source, module.__dict__)
    return module


def as_tables(plans: AnyPlans, **options: Any) -> ModuleType:
    """The program of plans as tables, whether they are regular or not."""
    return loaded(write(program_of(plans, "jax", **options).as_tables("by a test")))


def mesh_of(ranks: int) -> Any:
    return Mesh(np.array(jax.devices()[:ranks]), ("sp",))


def placed(module: ModuleType, arrays: Sequence[Array]) -> list[Any]:
    """Whole arrays of q, k, v, dout in layout order."""
    return [
        jnp.concatenate([module.shard(jnp.asarray(x), rank, side=side) for rank in range(ranks)], 2)
        for x, side, ranks in zip(arrays, SIDES, [module.RANKS] * 4, strict=True)
    ]


def both(module: ModuleType, calls: list[int] | None = None) -> Callable[..., Any]:
    """out, dq, dk, dv as one compiled function; `calls` grows whenever it is traced."""

    def run(q: Any, k: Any, v: Any, dout: Any, *tables: Any) -> Any:
        if calls is not None:
            calls.append(1)
        mesh = mesh_of(module.RANKS)
        out, pull = jax.vjp(lambda *x: module.attention(*x, *tables, mesh=mesh), q, k, v)
        return out, *pull(dout)

    return jax.jit(run)


def assert_exact(module: ModuleType, work: Workload, run: Callable[..., Any], *tables: Any) -> None:
    """Output and gradients are those of dense attention."""
    inputs = draw(work, 3)
    result = zip(run(*placed(module, inputs), *tables), ("q", "q", "kv", "kv"), strict=True)
    wholes = [module.unshard(jnp.split(x, module.RANKS, 2), side=side) for x, side in result]
    assert_dense(work, inputs, wholes)


@pytest.mark.parametrize(
    ("schedule", "ranks", "change"),
    [
        ("zigzag", 4, {}),
        ("striped", 3, {"kv_seq": 41, "mask": Causal() & Window(9)}),
        ("balanced", 5, {"mask": Documents((9, 0, 20, 8)) & Causal(), "batch": 2}),
        ("burst", 8, {"seq": 5, "kv_seq": 5}),  # ranks without tokens
        ("allgather", 4, {"mask": Prefix(5)}),
        ("usp:ulysses=2", 4, {"seq": 32, "kv_seq": 32, "mask": Full()}),
        ("ulysses", 4, {"heads": 9, "kv_heads": 3}),  # slices that begin within a group
    ],
)
def test_any_plan_is_exact_as_tables(
    schedule: str, ranks: int, change: dict[str, int | Mask]
) -> None:
    work = replace(WORK, **change)
    assert_replay_exact(as_text(plan(schedule, work, ranks, pass_="both")), work, ranks)


def as_text(plans: AnyPlans) -> str:
    """The program of plans as tables, whether they are regular or not."""
    return write(program_of(plans, "jax").as_tables("by a test"))


def assert_replay_exact(source: str, work: Workload, ranks: int) -> None:
    """Output and gradients of a replay in numpy are those of dense attention."""
    inputs = draw(work, 3)
    assert_dense(work, inputs, replayed(source, ranks, *inputs))


def test_plans_of_single_blocks_and_initial_copies_are_exact() -> None:
    work = replace(WORK, mask=Causal() & Window(6))
    assert_replay_exact(as_text(plan("zigzag", work, 4, pass_="both", trim="blocks")), work, 4)
    kept = plan("usp:ulysses=2", replace(WORK, seq=32, kv_seq=32), 4, pass_="both")
    assert {t for held in kept.backward.start for t in held.tensors} == {"Q", "KV", "OUT"}
    module = as_tables(kept)
    assert module.TABLES["KEPT"].keys() == {"Q", "KV"}
    assert_replay_exact(as_text(kept), kept.workload, 4)


def test_long_tables_are_compressed_and_read_again() -> None:
    pair = plan("zigzag", replace(WORK, seq=64, kv_seq=64, mask=Window(9)), 8, pass_="both")
    source = as_text(pair)
    assert "= unpack(" in source
    assert_replay_exact(source, pair.workload, 8)


def other_keys(step: Any) -> None:
    step["TILES"][1][0][0][1] ^= 1


def other_slot(step: Any) -> None:
    step["TILES"][1][0][0][3] ^= 1


def no_arrival(step: Any) -> None:
    step["MOVES"][0][0][-1] = -1


@pytest.mark.parametrize("change", [lambda step: None, other_keys, other_slot, no_arrival])
def test_a_wrong_table_is_not_exact(
    change: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 meets the keys of rank 1 in the second step, in its second slot."""

    def changed(*plans: Any) -> Any:
        made = tables(*plans)
        change(made["PASSES"]["forward"])
        return made

    monkeypatch.setattr(slots, "tables", changed)
    work = replace(WORK, mask=Full())
    source = as_text(plan("ring", work, 2, pass_="both"))
    wrong = pytest.raises(AssertionError, match="from dense attention")
    with wrong if "lambda" not in change.__name__ else nullcontext():
        assert_replay_exact(source, work, 2)


def test_finished_sums_travel_in_the_type_of_the_model() -> None:
    pair = plan("usp:ulysses=2", replace(WORK, seq=32, kv_seq=32), 4, pass_="both")
    module = as_tables(pair)
    x = jax.ShapeDtypeStruct((1, 4, 32, 4), "bfloat16")
    y = jax.ShapeDtypeStruct((1, 2, 32, 4), "bfloat16")
    text = str(jax.make_jaxpr(partial(module.attention, mesh=mesh_of(4)))(x, y, y))
    sent = [line for line in text.splitlines() if "ppermute" in line]
    assert sent
    wide = [line for line in sent if "f32[" in line and ",1] = " not in line]
    assert not wide, "only the log-sum-exp travels in 32 bits"


def documents(random: np.random.Generator, total: int) -> Documents:
    cuts = np.sort(random.integers(0, total + 1, random.integers(0, 5)))
    return Documents(tuple(np.diff([0, *cuts, total]).tolist()))


def test_tables_as_an_argument_follow_any_mask_and_compile_once() -> None:
    full, random, calls = replace(WORK, mask=Full()), np.random.default_rng(0), list[int]()
    pair = plan("usp:ulysses=2", full, 4, pass_="both")
    program = program_of(pair, "jax", dynamic=True, max_calls=40)
    module = loaded(write(program))
    run = both(module, calls)
    masks = [Causal(), Full(), Window(4) | Prefix(3)]
    masks += [documents(random, 37) & Causal()]
    with jax.enable_x64(True):
        for mask in masks:
            made = by_tables.tables(program, mask)
            assert_exact(module, replace(WORK, mask=mask), run, made)
    assert (len(calls), run._cache_size()) == (1, 1)


def test_a_program_cuts_a_mask_into_the_calls_that_the_compiler_cuts_it_into() -> None:
    """Documents of any two lengths begin and end anywhere in a block."""
    pair = plan("zigzag", replace(WORK, mask=Full()), 3, pass_="both")
    program = program_of(pair, "jax", dynamic=True)
    module = loaded(write(program))
    for first in range(1, WORK.seq):
        mask = Documents((first, WORK.seq - first)) & Causal()
        ours = module.make_tables(masks.boxes(replace(WORK, mask=mask), any_length=False))
        np.testing.assert_equal(ours, by_tables.tables(program, mask))


@pytest.mark.parametrize("left", range(1, 37, 3))
def test_each_pair_that_a_mask_allows_is_in_one_call(left: int) -> None:
    mask, ranks = Window(left, 3), 3
    pair = plan("zigzag", replace(WORK, mask=Full()), ranks, pass_="both")
    made = by_tables.tables(program_of(pair, "jax", dynamic=True), mask)
    count, sides = np.zeros((WORK.seq, WORK.kv_seq), int), pair.forward.partition
    for i, j, *_, i0, i1, j0, j1, low, high in made["forward"].reshape(-1, 11).tolist():
        if i < len(sides.q):
            rows, cols = sides.q.blocks[i].tokens()[:, None], sides.kv.blocks[j].tokens()[None]
            seen = (i0 <= rows) & (rows < i1) & (j0 <= cols) & (cols < j1)
            count[rows, cols] += seen & (low <= cols - rows) & (cols - rows <= high)
    np.testing.assert_array_equal(count, replace(WORK, mask=mask).allowed(range(37), range(37)))


def test_boxes_that_share_a_pair_are_refused() -> None:
    """Each pair is looked at: whether some pair of positions lies in both boxes."""
    full = replace(WORK, mask=Full())
    module = loaded(write(program_of(plan("ring", full, 2), "jax", dynamic=True)))
    random, (i, j), met = np.random.default_rng(0), np.indices((6, 6)), Counter[bool]()

    def pairs(box: np.ndarray) -> np.ndarray:
        i0, i1, j0, j1, low, high = box
        inside = (i0 <= i) & (i < i1) & (j0 <= j) & (j < j1)
        return np.asarray(inside & (low <= j - i) & (j - i <= high))

    for _ in range(300):
        ends = random.integers(0, 7, (2, 2, 2)), random.integers(-6, 7, (2, 1, 2))
        boxes = np.concatenate([np.sort(each) for each in ends], 1).reshape(2, 6)
        met[shared := bool((pairs(boxes[0]) & pairs(boxes[1])).any())] += 1
        with (
            pytest.raises(ValueError, match=r"box 1 .* shares a pair") if shared else nullcontext()
        ):
            module.make_tables(boxes)
    assert min(met[True], met[False]) > 30


def test_tables_that_do_not_fit_are_refused() -> None:
    full = replace(WORK, mask=Full())
    made = program_of(plan("ring", full, 2, pass_="both"), "jax", dynamic=True)
    other = program_of(plan("ring", replace(full, scale=2.0), 2, pass_="both"), "jax", dynamic=True)
    module = loaded(write(made))
    assert module.PLAN["max_calls"] == 2
    x, y = np.ones((1, 4, 38, 4), "f4"), np.ones((1, 2, 38, 4), "f4")
    attend = partial(module.attention, x, y, y, mesh=mesh_of(2))
    with pytest.raises(ValueError, match=r"these tables are for plan \d+, not for plan \d+"):
        attend(by_tables.tables(other))
    traced = both(module)
    assert np.isfinite(traced(x, y, y, x, by_tables.tables(made))[0][:, :, :37]).all()
    for mask in (None, Keys(0)):  # under which no query meets a key, so that none makes it NaN
        assert np.isnan(traced(x, y, y, x, by_tables.tables(other, mask))[0][:, :, :37]).all()
    roomy = program_of(plan("ring", full, 2, pass_="both"), "jax", dynamic=True, max_calls=9)
    with pytest.raises(
        ValueError, match=r"tables forward have shape \[2, 2, 9, 11\], not \[2, 2, 2, 11\]"
    ):
        attend(by_tables.tables(roomy))
    many = Documents((5, 6, 7, 8, 11)) & Causal()
    with pytest.raises(PlanError, match=r"step 0 needs 4 calls, but max_calls is 2"):
        by_tables.tables(made, many)
    with pytest.raises(PlanError, match="1 calls in a step, more than --max-calls 0"):
        by_tables.tables(replace(made, max_calls=0))
    causal = program_of(plan("ring", WORK, 2, pass_="both"), "jax", dynamic=True)
    with pytest.raises(PlanError, match="make its plans for the mask full, not causal"):
        write(causal)


def test_files_check_themselves() -> None:
    pair = plan("zigzag", replace(WORK, mask=Full()), 2, pass_="both")
    text, end = emit(pair, "jax", dynamic=True), 'if __name__ == "__main__"'
    assert text.partition(end)[2] == emit(pair, "jax").partition(end)[2] != ""
    wrong = text.replace("out + share * (part - out)", "out + share * part")
    assert wrong != text
    assert [self_check(source) for source in (text, wrong)] == [0, 1]
