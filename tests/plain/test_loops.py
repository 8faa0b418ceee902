"""Loops: recovered from any plan's rows, they expand to them again and say no more than is so."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loop_interpreter import assert_exact
from loop_schedules import FOREIGN, foreign
from ringloom.planner.analysis.kinds import KINDS, Kinds
from ringloom.planner.columns import take_rows
from ringloom.planner.errors import PlanError
from ringloom.planner.ir import Pass, Step
from ringloom.planner.loops import check, recover
from ringloom.planner.loops.form import HELD, OWN, Expr, Guard, Part, Return, Send, Start
from ringloom.planner.loops.recovery import recover_expansion
from ringloom.planner.masks import Causal, Documents, Full, Mask, Prefix, Window
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.views.pseudo_code import pseudo_code
from sampling import square
from strategies import schedules, workloads

SCHEDULES = (
    "ring",
    "striped",
    "zigzag",
    "balanced",
    "burst",
    "allgather",
    "ulysses",
    "usp:ulysses=2",
)
PASSES: tuple[Pass, ...] = ("forward", "backward")


def work(ranks: int, mask: Mask, tokens: int = 16) -> Workload:
    return Workload(
        seq=ranks * tokens,
        heads=4 * ranks,
        kv_heads=2 * ranks,
        head_dim=4,
        mask=mask,
        dtype="float64",
    )


def masks(ranks: int) -> dict[str, Mask]:
    seq = ranks * 16
    lengths = seq // 4 + 3, seq // 8 + 1, seq // 2 - 7
    return {
        "full": Full(),
        "causal": Causal(),
        "window": Causal() & Window(seq // 6),
        "prefix": Prefix(seq // 5),
        "documents": Causal() & Documents((*lengths, seq - sum(lengths))),
    }


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize(("name", "ranks"), square(SCHEDULES, [1, 2, 5, 6], every=2), ids=str)
def test_loops_expand_to_the_rows_of_their_plan(name: str, ranks: int, pass_: Pass) -> None:
    ranks += ranks % 2 if name == "usp:ulysses=2" else 0  # pairs of ranks
    for mask in masks(ranks).values():
        made = plan(name, work(ranks, mask), ranks, pass_=pass_)
        check(recover(made), made)


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_loops_do_not_grow_with_the_ranks(name: str, mask: str, pass_: Pass) -> None:
    sizes = [
        len(recover(plan(name, work(n, masks(n)[mask]), n, pass_=pass_)).statements)
        for n in (8, 16)
    ]
    assert sizes[0] == sizes[1] <= 13


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("mask", ["window", "documents"])
@pytest.mark.parametrize("ranks", [8, 16])
def test_pieces_that_travel_apart_are_a_few_transfers(mask: str, ranks: int, pass_: Pass) -> None:
    made = plan("zigzag", work(ranks, masks(ranks)[mask]), ranks, pass_=pass_)
    names = {s.name for s in recover(made).statements if isinstance(s, Send)}
    assert 2 <= len(names) <= 7


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("ranks", [5, 8])
@pytest.mark.parametrize("name", FOREIGN)
def test_schedules_that_nobody_wrote_this_for_have_loops(
    name: str, ranks: int, pass_: Pass
) -> None:
    if (ranks, name) == (5, "hypercube"):
        pytest.skip("powers of two")
    for mask in (Full(), Causal()):
        made = foreign(name, work(ranks, mask), ranks, pass_)
        if (name, ranks, mask, pass_) == ("shuffled", 8, Causal(), "backward"):
            with pytest.raises(PlanError, match="more than 64"):
                recover(made)
        else:
            check(recover(made), made)


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_a_name_begins_once_in_a_step(mask: str) -> None:
    """Members of startrail's teams send on what they gathered, or what came to them first."""
    made = plan("startrail", work(12, masks(12)[mask]), 12)
    loops = recover(made)
    starts = [s for s in loops.statements if isinstance(s, Start)]
    begun = [(s.name, t) for s in starts for t in s.when.steps]
    assert begun
    assert len({*begun}) == len(begun)


# ---- what loops compute


@given(st.data(), st.integers(1, 8), workloads(longest=24), st.integers(0, 99))
def test_loops_compute_what_dense_attention_computes(
    data: st.DataObject, ranks: int, any_work: Workload, seed: int
) -> None:
    one = replace(any_work, batch=1)
    name = data.draw(schedules(ranks))
    for made in plan(name, one, ranks, pass_="both"):
        try:
            loops = recover(made)
        except PlanError:
            continue
        assert_exact(made, loops, seed)


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_loops_compute_it_too(name: str) -> None:
    for pass_ in PASSES:
        made = foreign(name, work(4, Full(), 3), 4, pass_)
        assert_exact(made, recover(made), 1)


@pytest.mark.parametrize("name", ["stride", "halves", "adjoint ring"])
def test_foreign_loops_are_as_long_at_many_ranks(name: str) -> None:
    for pass_ in PASSES:
        few, many = (recover(foreign(name, work(n, Full()), n, pass_)) for n in (5, 35))
        assert len(few.statements) == len(many.statements)


# ---- kinds


@given(workloads(longest=24), st.integers(1, 6), st.data())
def test_kinds_are_what_the_mask_says(any_work: Workload, ranks: int, data: st.DataObject) -> None:
    made = plan(data.draw(schedules(ranks)), any_work, ranks)
    kinds = Kinds(made)
    for _, attend in made.attends():
        for q, kv, kind in zip(attend.q, attend.kv, kinds.of(attend), strict=True):
            rows, cols = (
                np.unique(np.concatenate([side.blocks[b].tokens() for b in x[x >= 0]]))
                for side, x in ((made.partition.q, q), (made.partition.kv, kv))
            )
            sees = made.workload.allowed(rows, cols)
            n, m = sees.shape
            like = {
                "full": np.ones_like(sees),
                "causal": np.tri(n, m, dtype=bool),
                "strict": np.tri(n, m, -1, dtype=bool),
                "tiles": sees,
            }
            assert (like[KINDS[kind]] == sees).all()
            assert KINDS[kind] != "tiles" or not sees.all()


def test_causal_kinds_are_found_not_only_allowed() -> None:
    for name, kind in (("ring", "causal"), ("striped", "strict"), ("allgather", "tiles")):
        made = plan(name, work(4, Causal()), 4)
        seen = {KINDS[k] for _, a in made.attends() for k in Kinds(made).of(a)}
        assert kind in seen


def test_what_a_mask_leaves_of_two_values_is_one_statement() -> None:
    for layout in ("contiguous", "zigzag"):
        made = plan(f"allgather:layout={layout}", work(4, Causal() & Window(20)), 4)
        assert pseudo_code(recover(made)).splitlines()[-1].split(",")[0] == "    attend own x G0"


def test_bounds_that_are_open_at_an_end_do_not_go_around_it() -> None:
    coordinates = np.array([[0, 0], [1, 1], [2, 2]])
    low, high = (Guard(((0, None, Expr(-1)),)), Guard(((0, Expr(3), None),)))
    assert not low.at(0, coordinates).any()
    assert not high.at(0, coordinates).any()
    around = Guard(((0, Expr(2), Expr(0)),))
    assert around.at(0, coordinates).tolist() == [True, False, True]


# ---- what is said


def test_a_zigzag_reads_as_a_person_would_write_it() -> None:
    made = plan("zigzag", work(8, Causal()), 8, pass_="backward")
    lines = [" ".join(line.split()) for line in pseudo_code(recover(made)).splitlines()]
    assert lines == [
        "mesh r=8",
        "for t in 0..7:",
        "A = own t = 0",
        "A <- send KV A to r+1 t <= 6",
        "B <- send DKV sum for A@t-1 to r+1 into A t >= 1",
        "attend own x A, causal t = 0",
        "attend own x A[0], full t >= 1, r >= t",
        "attend own[1] x A, full t >= 1, r <= t-1",
        "step 8:",
        "B <- send DKV sum for A@t-1 to r+1 into own",
    ]


def test_ranks_around_the_end_are_told_as_two_ends() -> None:
    work = Workload(seq=240, heads=2, head_dim=8, mask=Window(40))
    shown = pseudo_code(recover(plan("mesh2d", work, 6)))
    assert "(to_rank >= 4 or to_rank <= 1)" in shown
    assert "4 <= to_rank <= 1" not in shown
    assert "t%6 <= r <= (t-2)%6" in pseudo_code(
        recover(plan("broadcast", replace(work, mask=Full()), 6))
    )


def test_sums_go_on_under_the_name_of_inputs_that_do_not() -> None:
    """In a causal ring keys and values stop where nobody needs them, their sums do not."""
    for name in ("ring", "striped", "zigzag", "balanced", "burst", "usp:ulysses=2"):
        loops = recover(plan(name, work(8, Causal()), 8, pass_="backward"))
        sums = [s for s in loops.statements if isinstance(s, Send) and "D" in s.tensors[0]]
        assert all(s.into for s in sums if s.tensors[0] in ("DKV", "DQ"))


def test_sums_that_are_said_to_be_for_another_value_are_refused() -> None:
    made = plan("zigzag", work(8, Causal()), 8, pass_="backward")
    loops = recover(made)
    wrong = (
        replace(s, into=Part(OWN)) if isinstance(s, Send) and s.into and s.into.value != OWN else s
        for s in loops.statements
    )
    with pytest.raises(PlanError, match="but belong to other blocks"):
        check(replace(loops, statements=tuple(wrong)), made)


def test_gathered_and_held_values_have_collectives() -> None:
    made = plan("allgather", work(8, Causal()), 8, pass_="backward")
    loops = recover(made)
    (gather,) = loops.exchanges.values()
    assert gather.heads is None
    assert {s.name for s in loops.statements if isinstance(s, Return)} == {gather.name}
    kept = plan("allgather:keep=1", work(8, Causal()), 8, pass_="backward")
    (scatter,) = [s for s in recover(kept).statements if isinstance(s, Return)]
    assert scatter.name == HELD
    assert_exact(kept, recover(kept), 3)


def test_exchanges_whose_receivers_get_the_same_heads_are_called_gathers() -> None:
    work = Workload(seq=32, heads=4, head_dim=4, mask=Full())
    texts = [pseudo_code(recover(plan(name, work, 4))) for name in ("llama3", "ulysses")]
    assert ["gather" in text for text in texts] == [True, False]
    assert ["all-to-all" in text for text in texts] == [False, True]


@pytest.mark.parametrize("name", ["llama3:stride=1", "ulysses-stages:stages=4", "head-chunks"])
@pytest.mark.parametrize("heads", [16, 32])
def test_exchanges_of_many_steps_are_as_many_statements_as_of_few(name: str, heads: int) -> None:
    name = name.replace("chunks", f"chunks:stages={heads // 4}")
    work = Workload(seq=32, heads=heads, head_dim=4, mask=Causal())
    for pass_, most in (("forward", 4), ("backward", 5)):
        loops = recover(plan(name, work, 4, pass_=pass_))
        assert len(loops.statements) <= most
        assert all(s.repeats for s in loops.exchanges.values())


def test_exchanges_of_two_steps_are_told_one_by_one() -> None:
    work = Workload(seq=32, heads=8, head_dim=4, mask=Full())
    loops = recover(plan("head-chunks:stages=2", work, 4))
    assert [s.when.steps for s in loops.exchanges.values()] == [[0], [0], [1], [1]]


def test_an_irregular_plan_says_why() -> None:
    made = plan("ring", work(8, Full()), 8)
    moves = [m for s in made.steps for m in s.moves]
    rng = np.random.default_rng(0)
    shuffled = []
    for step in made.steps:
        order = rng.permutation(8)
        attends = tuple(type(a)(a.rank, a.q, a.kv[order]) for a in step.attends)
        shuffled.append(Step(attends, step.moves))
    assert moves
    with pytest.raises(PlanError, match="a rank reads a block that came by no rule"):
        recover(replace(made, steps=tuple(shuffled)))


def test_check_refuses_the_loops_of_another_plan() -> None:
    one, other = (plan(n, work(8, Causal()), 8) for n in ("ring", "zigzag"))
    with pytest.raises(PlanError):
        check(recover(one), other)
    with pytest.raises(PlanError, match="steps"):
        check(recover(one), replace(one, steps=one.steps[:-1]))


def test_rectangles_of_ranks_in_a_row_take_no_memory_of_their_own() -> None:
    rows = recover_expansion(plan("zigzag", work(8, Causal()), 8))
    tables = {side: [x.table for x in values.values] for side, values in rows.values.items()}
    for attend in (attend for steps in rows.rectangles.values() for attend in steps.values()):
        assert any(np.shares_memory(attend.q, table) for table in tables["q"])
        assert any(np.shares_memory(attend.kv, table) for table in tables["kv"])


@pytest.mark.parametrize("rows", [[], [2], [1, 2, 3], [0, 2, 1, 3], [3, 2], [1, 1, 3]])
def test_rows_of_a_table_are_those_asked_for(rows: list[int]) -> None:
    table = np.arange(8).reshape(4, 2)
    assert take_rows(table, np.array(rows, np.intp)).tolist() == [table[n].tolist() for n in rows]
