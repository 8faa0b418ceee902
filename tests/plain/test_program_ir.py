"""The program IR: what loops are lowered to computes their plan; the check refuses the rest."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowered_programs import SCHEDULES, expansions, lowers, masks, programs
from program_mutants import mutants
from ringloom.codegen.check import ProgramError, check
from ringloom.codegen.conditions import (
    Bound,
    Condition,
    Every,
    Listed,
    Span,
    Steps,
    holds,
    simplify,
)
from ringloom.codegen.ir import (
    At,
    Attend,
    Choose,
    For,
    Op,
    Post,
    Register,
    Wait,
    Zero,
    reads,
    walk,
    writes,
)
from ringloom.codegen.lower import lower
from ringloom.codegen.lowering.keeping import kept_exchanges
from ringloom.codegen.passes import PASSES, fuse_messages, optimize
from ringloom.planner.errors import PlanError
from ringloom.planner.loops.form import Expr, Loops

PIECES = "zigzag", "striped", "burst", "ring", "double-ring", "allgather", "ulysses", "usp"
LEFT = {("double-ring", 2), ("double-ring", 4)}  # windows and documents, by number of the mask


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 6, 7, 8, 9])
def test_the_check_accepts_all_programs_that_loops_are_lowered_to(ranks: int) -> None:
    chosen = masks(ranks) if ranks < 6 else [masks(ranks)[0], masks(ranks)[ranks - 5]]
    made = Counter(lowers(s, ranks, mask) for mask in chosen for s in SCHEDULES)
    assert made[True] > 12 * len(chosen)


@pytest.mark.parametrize("ranks", [4, 8])
def test_pieces_that_travel_apart_are_loops(ranks: int) -> None:
    four = [(n, masks(ranks)[n]) for n in (2, 4, 5, 6)]
    tables = {(name, n) for name in PIECES for n, mask in four if not lowers(name, ranks, mask)}
    assert tables <= LEFT


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(SCHEDULES), st.integers(2, 12), st.data())
def test_loops_are_lowered_to_their_plan_or_refused(
    name: str, ranks: int, data: st.DataObject
) -> None:
    lowers(name, ranks, data.draw(st.sampled_from(masks(ranks))))


def test_every_op_that_is_left_out_is_missed_but_for_names() -> None:
    for program, rows, held in programs("zigzag", 5, "causal"):
        for how, mutant in mutants(program):
            if how.startswith("without ") and not how.startswith("without Let"):
                with pytest.raises(ProgramError):
                    check(mutant, rows, held)


def test_the_check_says_which_op_fails_where() -> None:
    ((program, rows, held), _) = programs("ring", 4, "causal")
    attend = next(op for op in walk(program.ops) if isinstance(op, Attend) and op.kind == "full")

    def causal(op: Op) -> Op:
        match op:
            case For() | At():
                return replace(op, body=tuple(map(causal, op.body)))
            case Choose():
                return Choose(tuple((asked, causal(case)) for asked, case in op.cases))
        return replace(attend, kind="causal") if op == attend else op

    wrong = replace(program, ops=tuple(map(causal, program.ops)))
    with pytest.raises(ProgramError, match=r"step 1, rank 1: a rectangle is not causal"):
        check(wrong, rows, held)


def test_a_message_that_nobody_waits_for_is_refused() -> None:
    ((program, rows, held), _) = programs("allgather", 4, "causal")
    start = next(op for op in walk(program.ops) if isinstance(op, Wait) and op.starts)
    lost = replace(start.message, handle="lost")
    with pytest.raises(ProgramError, match="no rank has waited for lost"):
        check(replace(program, ops=(*program.ops, Post(lost))), rows, held)


def test_sums_must_not_change_while_they_are_sent() -> None:
    rows = expansions("ring", 4, "causal")[1]
    program = lower(rows)
    loop = next(op for op in program.ops if isinstance(op, For))
    body = tuple(op for op in loop.body if not isinstance(op, Zero))
    wrong = replace(
        program, ops=tuple(replace(op, body=body) if op == loop else op for op in program.ops)
    )
    with pytest.raises(ProgramError, match="changes while it is sent"):
        check(wrong, rows)


# ---- what is refused, with its reason


@pytest.mark.parametrize(
    ("name", "mask", "reason"),
    [
        ("pass-q", "causal", "two arrivals of A share a register"),
        ("tree", "causal", "after a new one came"),
        ("halo", "causal & documents:20,100,8", "different numbers"),
    ],
)
def test_what_has_no_op_is_refused_by_the_lowering(name: str, mask: str, reason: str) -> None:
    passes = expansions(name, 8, mask)
    with pytest.raises(PlanError, match=reason) as caught:
        [lower(rows, kept_exchanges(passes)) for rows in passes]
    assert not isinstance(caught.value, ProgramError)


# ---- passes


@pytest.mark.parametrize("name", ["zigzag", "usp", "balanced", "allgather"])
def test_each_pass_alone_keeps_what_a_program_computes(name: str) -> None:
    passes = expansions(name, 6, "causal")
    for rows in passes[:1]:
        program = lower(rows, kept_exchanges(passes))
        check(program, rows)
        for run in PASSES:
            check(run(program), rows)
            check(run(run(program)), rows)


def test_a_message_is_fused_with_its_wait_where_nothing_is_computed_between() -> None:
    rows = expansions("zigzag", 4, "causal")[1]
    before, after = ([*walk(p.ops)] for p in (lower(rows), fuse_messages(lower(rows))))
    assert (
        sum(isinstance(op, Post) for op in after) == sum(isinstance(op, Post) for op in before) - 1
    )
    assert [op.starts for op in after if isinstance(op, Wait)].count(True) == 1


def test_ops_state_what_they_read_and_write() -> None:
    (program, _, _), *_ = programs("zigzag", 4, "causal")
    loop = next(op for op in program.ops if isinstance(op, For))
    own, visiting, out = Register("q", "own"), Register("kv", "A"), Register("OUT", "own")
    assert {own, visiting, out} <= {*reads(loop)}
    assert {visiting, out} == {*writes(loop)}


def test_choices_ask_only_what_those_before_leave_open() -> None:
    (program, _, _), *_ = programs("zigzag", 8, "causal")
    (choice,) = (op for op in walk(program.ops) if isinstance(op, Choose))
    assert [asked for asked, _ in choice.cases] == [
        (Steps(None, 0),),
        (Bound(0, Expr(0, 1), None),),
        (),
    ]


# ---- conditions

ENDS = st.none() | st.builds(
    Expr, st.integers(-9, 9), st.integers(-2, 2), st.tuples(st.integers(-1, 1), st.integers(-1, 1))
)
TESTS = st.one_of(
    st.builds(Steps, st.none() | st.integers(0, 7), st.none() | st.integers(0, 7)),
    st.builds(Every, st.integers(0, 7), st.integers(1, 4), st.integers(1, 3)),
    st.builds(Bound, st.integers(-1, 1), ENDS, ENDS),
    st.builds(Listed, st.sets(st.integers(0, 5)).map(tuple)),
    st.builds(Span, *[st.tuples(*[st.integers(0, 7)] * 6)] * 2),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(TESTS, max_size=4).map(tuple), st.integers(0, 2**48 - 1))
def test_simplified_conditions_hold_on_the_same_steps_and_ranks(
    tests: Condition, bits: int
) -> None:
    where, steps = Loops((2, 3), 0, ()).coordinates(), range(8)
    known = np.array([bits >> n & 1 for n in range(48)], bool).reshape(8, 6)
    short = simplify(tests, steps, where, known)
    assert (holds(short, steps, where)[known] == holds(tests, steps, where)[known]).all()
    for n in range(len(short)):
        rest = (*short[:n], *short[n + 1 :])
        if (holds(rest, steps, where)[known] == holds(tests, steps, where)[known]).all():
            assert isinstance(short[n], Steps)  # two of which are joined
            assert None not in (short[n].first, short[n].last)


# ---- loops by piece


@pytest.mark.parametrize("mask", masks(8))
@pytest.mark.parametrize("name", ["zigzag", "burst", "usp", "striped", "double-ring"])
def test_values_by_piece_have_equally_many_pieces_on_all_ranks(name: str, mask: str) -> None:
    for rows in expansions(name, 8, mask):
        if len(rows.loops.statements) > 40:
            continue
        for values in rows.values.values():
            for value in values.values:
                here = (value.table >= 0).any(axis=2).sum(axis=1)
                assert len({*here[here > 0].tolist()}) == 1


def test_tiles_are_exactly_what_the_mask_leaves() -> None:
    rows = expansions("zigzag", 8, "prefix:16")[0]
    assert any(getattr(s, "kind", "") == "tiles" for s in rows.loops.statements)
    assert optimize(lower(rows)).ops
