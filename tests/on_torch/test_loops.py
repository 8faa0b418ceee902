"""Torch programs printed from loops: exact, short, tidy, and whole under torch.compile."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ringloom.codegen import emit
from ringloom.codegen.programs import Program, lower_passes, program_of
from ringloom.codegen.torch import write
from ringloom.planner import ir
from ringloom.planner.errors import PlanError
from ringloom.planner.loops import recover_expansion
from ringloom.planner.loops.check import check
from ringloom.planner.loops.expand import Expansion, expand
from ringloom.planner.loops.form import (
    Attend,
    Expr,
    Guard,
    Hop,
    Kind,
    Loops,
    Part,
    Root,
    Send,
    Shift,
    Start,
    Statement,
    When,
)
from ringloom.planner.masks import (
    Blocks,
    Causal,
    Documents,
    Full,
    Global,
    Mask,
    Prefix,
    Slices,
    Window,
)
from ringloom.planner.partitions import Partition, Side
from ringloom.planner.planning import plan
from ringloom.planner.plans import Plans
from ringloom.planner.verify import verify, verify_pair
from ringloom.planner.workload import Workload

torch = pytest.importorskip("torch")

from rank_threads import assert_exact, load  # noqa: E402  only where torch is

TOKENS = 16  # per rank
DOCUMENTS = Causal() & Documents((7, 30, 15, 12))
GAPS = Blocks(((1, 0, 1, 1), (1, 1, 0, 1), (0, 1, 1, 0), (1, 0, 0, 1)), TOKENS)
REGULAR = [
    ("ring", 4, Causal()),
    ("ring", 5, Causal()),
    ("ring", 3, Full()),
    ("striped", 4, Causal()),
    ("zigzag", 4, Causal()),
    ("zigzag", 3, Causal()),
    ("zigzag", 2, Full()),
    ("burst", 4, Causal()),
    ("burst", 3, Full()),
    ("balanced", 4, Causal()),
    ("balanced", 5, Full()),
    ("balanced", 3, Causal()),  # sums that begin on some ranks only
    ("allgather", 4, Causal()),
    ("allgather", 3, Full()),
    ("ulysses", 4, Causal()),
    ("usp:ulysses=2", 8, Causal()),
    ("usp:ulysses=2", 4, Full()),
    # new sums that one message brings, where older ones have left
    ("usp:ulysses=4", 8, Causal()),
    # the same messages, where older ones have not left
    ("tokenring", 2, Causal()),
    ("bidirectional", 2, Full()),
    # queries of several ranks, in order, and keys that two exchanges bring
    ("ulysses-gather:ulysses=2", 4, Causal()),
    ("ulysses-gather:ulysses=4", 8, Causal()),
    ("ring", 4, DOCUMENTS),
    ("striped", 4, DOCUMENTS),
    ("ulysses", 4, DOCUMENTS),
    ("ring", 4, Causal() & Window(20, 0)),
    # sums that stay with their owner while others travel, where that is a name of its own or not
    ("ring", 4, Causal() & Window(9, 0)),
    ("ring", 2, Causal()),
    ("striped", 4, Causal() & Window(20, 0)),
    # of what a gather brought, each rank takes several runs of pieces
    ("allgather", 4, DOCUMENTS),
    ("allgather", 8, Causal() & Window(20, 0)),
    ("allgather:layout=contiguous", 4, GAPS),
    ("llama3", 4, Causal() & Window(9, 0)),
    ("ulysses-gather:ulysses=2", 8, Causal() & Window(9, 0)),
    # messages of one value on two ways in one loop, of which each rank takes part in one
    ("ring", 4, Causal() | Prefix(20)),
    ("ring", 4, Causal() & (Window(6) | Global(3))),
    # of three messages that stay together one is read, and all are waited for
    ("allgather", 4, Slices(((0, 12, 0, 1, "full"),))),
]


def program(name: str, ranks: int, mask: Mask, tokens: int = TOKENS, **more: Any) -> Program:
    """The program of both passes, for few heads in float64."""
    sizes = {"heads": 2 * ranks, "kv_heads": ranks, "head_dim": 8, "dtype": "float64"} | more
    work = Workload(seq=ranks * tokens, mask=mask, **sizes)
    return program_of((plan(name, work, ranks), plan(name, work, ranks, pass_="backward")), "torch")


def by_loops(made: Program) -> str:
    """The text of a program that must come from loops."""
    assert made.lowered is not None, made.irregular
    text = write(made)
    assert "as tables" not in text
    return text


@pytest.mark.parametrize(("name", "ranks", "mask"), REGULAR, ids=str)
def test_programs_of_loops_are_exact(name: str, ranks: int, mask: Mask) -> None:
    made = program(name, ranks, mask)
    text = by_loops(made)
    assert not re.findall(r"^ *(\w+) = \1$", text, re.MULTILINE), "a name is set to itself"
    assert_exact(load(text), Plans(*made.plans))


def test_ranks_get_copies_of_heads_of_keys_that_are_fewer() -> None:
    made = program("ulysses", 4, Causal(), heads=8, kv_heads=2)
    assert_exact(load(by_loops(made)), Plans(*made.plans))


def test_a_wrong_guard_is_refused_or_wrong() -> None:
    """A check that cannot fail is none: keys that go a rank further than the plan has it."""
    made = program("zigzag", 4, Causal())
    assert made.loops
    text = by_loops(made)
    wrong = text.replace("elif rank >= step:", "elif rank > step:")
    assert wrong != text
    with pytest.raises(AssertionError):
        assert_exact(load(wrong), Plans(*made.plans))


def changed(loops: Loops, old: type, **fields: Any) -> Loops:
    """The loops with the last statement of a kind changed."""
    at = max(i for i, s in enumerate(loops.statements) if isinstance(s, old))
    statements = [*loops.statements]
    statements[at] = replace(statements[at], **fields)
    return replace(loops, statements=tuple(statements))


def test_what_cannot_be_printed_is_refused_with_the_reason() -> None:
    made = program("zigzag", 4, Causal())
    assert made.loops
    forward, backward = made.loops
    two = changed(forward, Attend, kv=(Part("A"), Part("own")))
    with pytest.raises(PlanError, match="blocks of several messages"):
        lower_passes([expand(two, made.forward)])
    halved = changed(backward, Send, parts=(Part("A"), Part("own")))
    with pytest.raises(PlanError):
        lower_passes([expand(halved, made.plans[1])])


def test_any_length_and_any_heads_go_where_nothing_binds_them() -> None:
    module = load(by_loops(program("zigzag", 4, Causal())))
    for tokens, heads, batch in ((2, 4, 2), (6, 3, 1)):
        other = program("zigzag", 4, Causal(), tokens, heads=heads, kv_heads=1, batch=batch)
        assert_exact(module, Plans(*other.plans))


# ---- what keeps programs short

SMALL: dict[str, Any] = {"heads": 8, "kv_heads": 4, "head_dim": 4, "dtype": "float64"}


def printed(schedule: str, work: Workload, ranks: int) -> tuple[Plans, str]:
    """The plans of a schedule, and their program."""
    plans = plan(schedule, work, ranks, pass_="both")
    return plans, write(program_of(plans, "torch"))


def test_pieces_of_several_ranks_that_follow_one_another_are_attended_as_one() -> None:
    plans, source = printed("ulysses-gather", Workload(seq=64, mask=Window(9), **SMALL), 8)
    program = load(source)
    assert program.runs(
        torch.cat([program.positions(rank) for rank in range(4)]).sort().values
    ) == (
        range(16),
        range(48, 64),
    )
    assert_exact(program, plans)


def assert_printed(pair: Plans) -> None:
    source = emit(pair, "torch")
    assert "as tables" not in source
    assert_exact(load(source), pair)


def test_keys_that_begin_to_travel_twice_are_exact() -> None:
    """Those of rank 0 and then of rank 1, under one name: the second time it is given anew."""
    work, r = Workload(8, heads=2, head_dim=4, dtype="float64", mask=Full()), np.arange(2)
    ring, steps = plan("ring", work, 2, pass_="both"), list[ir.Step]()
    q, kv = (side.owned(2) for side in (ring.first.partition.q, ring.first.partition.kv))
    for root in r:
        steps.append(ir.Step((), (ir.Move(("KV",), kv[[root]], [root], [1 - root]),)))
        steps.append(ir.Step((ir.Attend(r, q, kv[[root, root]]),)))
    assert_printed(verify_pair(replace(ring.forward, steps=tuple(steps)), ring.backward))


def test_sums_that_begin_within_a_loop_are_exact() -> None:
    """Queries go around after a step in which only keys go: before they begin, sums may come."""
    work, r = Workload(32, heads=2, head_dim=4, dtype="float64", mask=Full()), np.arange(4)
    ring, steps = plan("ring", work, 4), list[ir.Step]()
    q, kv = (side.owned(4) for side in (ring.partition.q, ring.partition.kv))
    for t in range(7):
        visitor, last = q[(r - t + 1) % 4], (r - t + 2) % 4
        moves = [ir.Move(("KV",), kv[(r - t) % 4], r, (r + 1) % 4)] if t < 2 else []
        moves += [ir.Move(("Q", "DOUT", "STATS"), visitor, r, (r + 1) % 4)] if 0 < t < 4 else []
        moves += [ir.Move(("DQ",), q[last], r, last)] if t > 2 else []
        attends = (ir.Attend(r, visitor, kv),) if 0 < t < 5 else ()
        steps.append(ir.Step(attends, tuple(moves)))
    backward = replace(ring, pass_="backward", buffers=(), steps=tuple(steps))
    assert_printed(verify_pair(ring, backward))


def test_sums_that_begin_in_a_loop_where_others_have_left_are_exact() -> None:
    """Results of a first visitor leave in a loop; those of a second one have their name after."""
    work, r = Workload(32, heads=2, head_dim=4, dtype="float64", mask=Full()), np.arange(4)
    ring = plan("ring", work, 4, pass_="both")
    q, kv = (side.owned(4) for side in (ring.first.partition.q, ring.first.partition.kv))
    home, away, keys = (
        [ir.Move((tensor,), blocks[r - a * n], r, (r + b * n + c) % 4) for n in range(4)]
        for tensor, blocks, a, b, c in (
            ("OUT", q, 1, -1, 0),
            ("Q", q, 0, 1, 0),
            ("KV", kv, 1, 0, 1),
        )
    )
    own, *visitors = (ir.Attend(r, q[r - n], kv) for n in range(4))
    steps = [
        ir.Step((), (away[1],)),
        ir.Step((own, visitors[0])),
        ir.Step((), (away[2], keys[0])),
        ir.Step((), (home[1], keys[1])),
        ir.Step((visitors[1],), (keys[2],)),
        ir.Step((), (home[2], away[3])),
        ir.Step((visitors[2],)),
        ir.Step((), (home[3],)),
    ]
    assert_printed(verify_pair(replace(ring.forward, steps=tuple(steps)), ring.backward))


def by_hand(base: ir.Plan, *statements: Statement) -> Expansion:
    """The rows of loops over ranks in a line, checked: those of a plan that is verified."""
    loops = Loops((base.ranks,), 1 + max(s.when.last for s in statements), statements)
    rows = Expansion(loops, base)
    made = verify(replace(base, steps=tuple(rows.step(t) for t in range(loops.steps))))
    return check(loops, made)


def assert_by_hand(rows: Expansion, forward: ir.Plan | None = None) -> None:
    """The program of these loops is exact; of a backward pass with those of a forward plan."""
    plans = verify_pair(forward, rows.plan) if forward else Plans(rows.plan)
    passes = (recover_expansion(forward), rows) if forward else (rows,)
    made = replace(program_of(plans, "torch"), passes=passes, lowered=lower_passes(passes))
    assert_exact(load(by_loops(made)), plans)


OWN, ON, BACK = Part("own"), Shift((Expr(1),)), Shift((Expr(-1),))


def at(t: int, *ranks: int) -> When:
    """A step, and the first and the last rank if not all."""
    bounds = ((0, Expr(ranks[0]), Expr(ranks[1])),) if ranks else ()
    return When(t, t, guard=Guard(bounds))


def sent(when: When, name: str, tensor: str, of: Part, hop: Hop, into: Part = OWN) -> Send:
    sums = ir.TENSORS[tensor].accumulates
    return Send(when, name, (tensor,), (of,), hop, into if sums else None)


def attended(when: When, q: Part, kv: Part, kind: Kind) -> Attend:
    return Attend(when, (q,), (kv,), kind)


def test_a_first_rectangle_without_the_diagonal_is_added_to_nothing() -> None:
    """On every rank, queries that came see no key of the diagonal."""
    work = Workload(12, heads=1, head_dim=2, dtype="float64", mask=Causal())
    base, a = plan("striped", work, 3), Part("A")
    kv = (replace(b, home=-b.home % 3) for b in base.partition.kv.blocks)
    rows = by_hand(
        replace(base, partition=Partition(base.partition.q, Side(tuple(kv)))),
        sent(at(0, 0, 0), "A", "Q", OWN, ON),
        sent(at(0, 0, 1), "A", "Q", OWN, BACK),
        sent(at(0, 1, 1), "B", "KV", OWN, ON),
        sent(at(0, 1, 2), "B", "KV", OWN, BACK),
        sent(at(5, 2, 0), "D", "OUT", replace(a, lag=4), ON),
        sent(at(5, 1, 1), "E", "OUT", replace(a, lag=4), BACK),
        sent(at(5, 2, 2), "C", "Q", OWN, ON),
        sent(at(7, 0, 0), "F", "OUT", Part("C", 1), BACK),
        attended(at(1), a, Part("B"), "strict"),
        attended(at(2, 1, 2), OWN, Part("B", 1), "causal"),
        attended(at(3, 2, 0), OWN, OWN, "causal"),
        attended(at(4, 0, 0), replace(a, lag=3), OWN, "causal"),
        attended(at(6, 0, 0), Part("C"), OWN, "causal"),
    )
    assert_by_hand(rows)


def test_sums_begin_with_nothing_where_only_a_root_gets_the_first_ones() -> None:
    work = Workload(16, heads=1, head_dim=2, dtype="float64", mask=Full())
    forward, backward = plan("ring", work, 2, pass_="both")
    statements = list[Statement]()
    for root in (0, 1):
        t, to, here, sums = 3 * root, Root(0, Expr(root)), "AB"[root], "CD"[root]
        statements.append(sent(at(t), here, "KV", OWN, to))
        statements.append(attended(at(t + 1, 1 - root, 1 - root), OWN, Part(here), "full"))
        statements.append(sent(at(t + 2), sums, "DKV", Part(here, 1), to))
    assert_by_hand(by_hand(backward, *statements, attended(at(6), OWN, OWN, "full")), forward)


def test_sums_that_leave_in_a_loop_where_an_owner_keeps_its_own_are_exact() -> None:
    """The last rank keeps those of its keys, which nobody else sees."""
    work = Workload(12, heads=1, head_dim=2, dtype="float64", mask=Causal())
    forward, backward = plan("ring", work, 3, pass_="both")
    a, before, step = Part("A"), Part("A", 1), Expr(step=1)
    first = When(0, 1, guard=Guard(((0, step, Expr(1)),)))
    rows = by_hand(
        backward,
        Start(at(0), "A", ("KV",), OWN),
        sent(first, "A", "KV", a, ON),
        sent(at(1, 0, 1), "B", "DKV", OWN, ON, a),
        sent(at(2, 1, 1), "C", "DKV", before, ON, a),
        sent(at(2, 2, 2), "D", "DKV", before, BACK),
        sent(at(3, 2, 2), "E", "DKV", before, ON),
        attended(at(0), OWN, OWN, "causal"),
        attended(When(1, 2, guard=Guard(((0, step, None),))), OWN, a, "full"),
    )
    assert_by_hand(rows, forward)


def test_sums_that_begin_in_a_loop_where_older_ones_have_left_are_exact() -> None:
    """Queries see keys of two ranks; the results of the first leave while other keys go around."""
    work = Workload(12, heads=1, head_dim=2, dtype="float64", mask=Full())
    a, before, c = Part("A"), Part("A", 1), Part("C")
    rows = by_hand(
        replace(plan("ring", work, 3), buffers=()),
        Start(at(0), "A", ("Q",), OWN),
        Start(at(2), "C", ("KV",), OWN),
        sent(at(0), "A", "Q", a, ON),
        sent(at(2), "A", "Q", before, ON),
        sent(at(2), "D", "OUT", before, BACK),
        sent(When(2, 3), "C", "KV", c, ON),
        sent(at(4), "E", "OUT", before, ON),
        attended(at(0), OWN, OWN, "full"),
        attended(at(1), a, OWN, "full"),
        attended(at(3), a, OWN, "full"),
    )
    assert_by_hand(rows)
