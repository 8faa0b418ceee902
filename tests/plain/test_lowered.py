"""Lowering: what is said once for all targets says what the loops say."""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from codegen.lowered.conditions import Domain, both, bounds, conditions, needed, on_arrays, times
from codegen.lowered.owners import owner
from codegen.lowered.variables import Span, input_spans, named
from codegen.lowered.walk import Cell, Walk, settled, walk
from codegen.text import Data, Names, numbered
from planner.columns import flat
from planner.errors import PlanError
from planner.ir import ACCUMULATORS, TENSORS, Plan
from planner.loops import recover, recovered_whole
from planner.loops.expand import Expansion
from planner.loops.form import (
    OWN,
    Attend,
    Exchange,
    Expr,
    Guard,
    Loops,
    Return,
    Send,
    Start,
    When,
)
from planner.masks import Causal, Documents, Full, Mask, Window
from planner.planning import plan
from planner.workload import Workload

NUMBERS = st.builds(Expr, st.integers(-3, 8), st.integers(-2, 2), modulo=st.sampled_from([0, 6]))
MESHES = st.sampled_from([(6,), (2, 3)])


@st.composite
def statements(draw: st.DrawFn) -> tuple[When, Domain]:
    """The steps and ranks of a statement, among steps in which it is asked."""
    mesh, first = draw(MESHES), draw(st.integers(0, 2))
    axes = st.integers(-1, len(mesh) - 1)
    bound = st.tuples(axes, st.none() | NUMBERS, st.none() | NUMBERS)
    guard = Guard(tuple(draw(st.lists(bound.filter(lambda b: any(b)), max_size=2))))
    begin, every = draw(st.integers(first, first + 2)), draw(st.integers(1, 3))
    last, width = begin + draw(st.integers(0, 5)), draw(st.integers(1, every))
    sizes = dict(zip(mesh, ("RANKS",) if len(mesh) == 1 else ("OUTER", "INNER"), strict=True))
    names = Names(("rank",) if len(mesh) == 1 else ("outer", "inner"), first, sizes=sizes)
    steps = range(first, last + 1 + draw(st.integers(0, 2)))
    return When(begin, last, every, width, guard), Domain(Loops(mesh, 9, ()), steps, names)


def on_one_rank(text: str, domain: Domain) -> list[list[bool]]:
    """Where a condition holds: by asking each rank in each step, in plain Python."""
    names = domain.names
    places = [
        dict(zip((*names.axes, "rank"), map(int, at), strict=False)) for at in coordinates(domain)
    ]
    return [
        [
            bool(eval(text or "True", {}, names.values | at | {"step": t - names.first}))
            for at in places
        ]
        for t in domain.steps
    ]


def coordinates(domain: Domain) -> list[list[int]]:
    rows = domain.loops.coordinates()
    return [row[: 1 if len(domain.loops.mesh) == 1 else None].tolist() for row in rows]


@given(statements())
def test_conditions_hold_on_the_steps_and_ranks_of_their_statement(
    given: tuple[When, Domain],
) -> None:
    when, domain = given
    try:
        said = conditions(when, domain)
    except PlanError:
        assume(False)
    meant = [
        [bool(x) for x in when.guard.at(t, domain.loops.coordinates()) & when.on(t)]
        for t in domain.steps
    ]
    assert on_one_rank(both(said), domain) == meant
    if said:
        assert domain.evaluate(on_arrays(said)).tolist() == meant


@given(st.sets(st.integers(0, 7), min_size=1))
def test_some_steps_are_said_or_refused(steps: set[int]) -> None:
    domain = Domain(Loops((2,), 8, ()), range(8), Names(("rank",)))
    try:
        text = both(times(sorted(steps), domain))
    except PlanError:
        assert len(steps) > 2
        return
    assert {t for t in range(8) if eval(text or "True", {"step": t})} == steps


def test_a_condition_that_holds_anyway_is_not_asked() -> None:
    domain = Domain(Loops((8,), 8, ()), (1, 2, 3), Names(("rank",)))
    anyway, asked = (0, Expr(0), Expr(7)), (0, Expr(4), None)
    said = [*bounds(Guard((anyway, asked)), domain)]
    everywhere = domain.evaluate("")
    assert on_arrays(needed(said, everywhere)) == "rank >= 4"
    assert both(needed(said[:1], everywhere)) == ""


def test_ranks_that_are_listed_are_asked_for_along_one_axis() -> None:
    domain = Domain(Loops((8,), 8, ()), (0,), Names(("rank",)))
    said = [*bounds(Guard(ranks=(1, 5)), domain)]
    assert both(said) == "rank in (1, 5)"
    assert np.flatnonzero(domain.evaluate(on_arrays(said))).tolist() == [1, 5]
    with pytest.raises(PlanError, match="which ranks take part"):
        list(bounds(Guard(ranks=(1, 5)), replace(domain, names=Names(("outer", "inner")))))


def test_a_long_list_of_ranks_has_a_name() -> None:
    domain, ranks = Domain(Loops((16,), 1, ()), (0,), Names(("rank",))), tuple(range(1, 13))
    (said,) = bounds(Guard(ranks=ranks), domain)
    assert (said.text, domain.names.data) == ("rank in LISTED", {"LISTED": ranks})
    assert np.flatnonzero(domain.evaluate(on_arrays([said]))).tolist() == [*ranks]


@pytest.mark.parametrize(
    ("spans", "text", "data"),
    [
        ([(2, 2), (2, 4), (1, 0)], "step <= LAST[rank]", {"LAST": (0, 2, -1)}),
        ([(2, 4), (4, 4), (1, 0)], "step >= FIRST[rank]", {"FIRST": (0, 2, 3)}),
        (
            [(2, 2), (3, 4), (1, 0)],
            "FIRST[rank] <= step <= LAST[rank]",
            {"FIRST": (0, 1, 3), "LAST": (0, 2, -1)},
        ),
    ],
)
def test_first_and_last_steps_of_ranks_are_data(
    spans: list[tuple[int, int]], text: str, data: Data
) -> None:
    names, guard = Names(("rank",), first=2), Guard(spans=tuple(spans))
    domain = Domain(Loops((3,), 5, ()), (2, 3, 4), names)
    said = [*bounds(guard, domain)]
    assert (both(said), names.data) == (text, data)
    meant = [guard.at(t, domain.loops.coordinates()) for t in domain.steps]
    assert np.array_equal(domain.evaluate(on_arrays(said)), meant)
    alone = Domain(domain.loops, (2,), replace(names, at=2))
    assert both([*bounds(guard, alone)]) == "rank " + ("== 0" if spans[1][0] > 2 else "in (0, 1)")


def test_both_ends_of_a_step_are_one_comparison() -> None:
    domain = Domain(Loops((2,), 5, ()), range(5), Names(("rank",)))
    said = conditions(When(1, 4, guard=Guard(spans=((0, 2), (0, 3)))), domain)
    assert both(said) == "0 < step <= LAST[rank]"


# ---- sums


class Counted:
    """The sums of a pass as numbers: how many pairs of blocks each rank has added, by cell."""

    def __init__(self, plan: Plan, loops: Loops, walked: Walk) -> None:
        self.plan, self.loops, self.walked = plan, loops, walked
        shape = {side: (plan.ranks, len(plan.partition.side(side))) for side in ("q", "kv")}
        self.cells: dict[Cell, np.ndarray] = {}
        self.shape, self.state = shape, Expansion(loops, plan)
        self.added = {t: np.zeros(shape[TENSORS[t].side][1], int) for t in ACCUMULATORS[plan.pass_]}

    def cell(self, cell: Cell) -> np.ndarray:
        return self.cells.setdefault(cell, np.zeros(self.shape[TENSORS[cell[0]].side], int))

    def step(self, t: int) -> None:
        """Messages take, then attends add, then arrivals are added."""
        active = [s for s in self.loops.statements if s.when.on(t)]
        arriving = []
        for s in active:
            if isinstance(s, Start):
                self.state.start(s, t)
            elif isinstance(s, Return | Send) and TENSORS[s.tensors[0]].accumulates:
                arriving.append((self.walked.into[s][t], *self.taken(s, t)))
            elif isinstance(s, Send):
                self.state.send(s, t)
            elif isinstance(s, Exchange):
                self.state.exchange(s, t)
        left = {self.walked.source[s] for s in active if s in self.walked.source}
        self.keep(left, t)
        for s in active:
            if isinstance(s, Attend):
                attend = self.state.attend(s, t)
                who, q, kv = attend.rank, attend.q, attend.kv
                for tensor in self.added:
                    own, others = (q, kv) if TENSORS[tensor].side == "q" else (kv, q)
                    rank, block = flat(who, own)
                    pairs = (others >= 0).sum(1)[np.searchsorted(who, rank)]
                    np.add.at(self.cell(self.walked.targets[s][t][tensor]), (rank, block), pairs)
                    np.add.at(self.added[tensor], block, pairs)
        for into, rank, block, pairs in arriving:
            np.add.at(self.cell(into), (rank, block), pairs)
        self.state.arrive()

    def taken(self, s: Send | Return, t: int) -> tuple[np.ndarray, ...]:
        """The receivers, blocks and numbers of what leaves."""
        cell = self.cell(self.walked.source[s])
        going = np.ones(self.plan.ranks, bool)
        if isinstance(s, Send):
            move = self.state.send(s, t)
            going[:], to = False, np.full(self.plan.ranks, -1)
            going[move.src], to[move.src] = True, move.dst
        rank, block = np.nonzero(cell * going[:, None])
        pairs = cell[rank, block]
        cell[going] = 0
        owners = self.plan.side(s.tensors[0]).owners
        return to[rank] if isinstance(s, Send) else owners[block], block, pairs

    def keep(self, cells: set[Cell], t: int) -> None:
        """Owners keep what nobody sent, in the step that says so; else there is no such thing."""
        for cell in cells:
            if self.walked.kept.get(cell) == t:
                self.cell((cell[0], OWN))[:] += self.cell(cell)
                self.cell(cell)[:] = 0
            assert not self.cell(cell).any(), "sums are left behind"

    def check(self) -> None:
        """All sums are at their owners in the end, each pair once."""
        for t in range(self.loops.steps):
            self.step(t)
        for tensor, added in self.added.items():
            owners = self.plan.side(tensor).owners
            own = self.cells.pop((tensor, OWN))
            assert (own[owners, np.arange(len(owners))] == added).all()
            assert own.sum() == added.sum()
        assert not any(rest.any() for rest in self.cells.values())


LONG = Workload(64, heads=8, kv_heads=4, head_dim=4, dtype="float64")
Lower = Callable[[Expansion], tuple[Loops, Walk]]
WALKED: list[tuple[str, int, Mask]] = [
    *((name, 4, mask) for name in ("ring", "zigzag", "balanced") for mask in (Causal(), Full())),
    ("ring", 4, Window(20)),
    ("ring", 8, Documents((20, 11, 13, 20)) & Causal()),
    *((name, 8, Causal()) for name in ("usp:ulysses=2", "double-ring", "tokenring", "allgather")),
    ("ulysses", 4, Window(9)),
    ("bidirectional", 4, Full()),
    ("decode-a2a", 4, Causal()),
    *(("llama3:stride=1", 4, mask) for mask in (Causal(), Window(9))),
]


@pytest.mark.parametrize("lower", [walk, settled])
@pytest.mark.parametrize(("name", "ranks", "mask"), WALKED, ids=str)
def test_sums_reach_their_owners_through_the_cells_that_they_are_added_to(
    name: str, ranks: int, mask: Mask, lower: Lower
) -> None:
    for made in plan(name, replace(LONG, mask=mask), ranks, pass_="both"):
        loops, walked = lower(recovered_whole(made))
        Counted(made, loops, walked).check()


def test_sums_that_are_added_elsewhere_do_not_reach_their_owners() -> None:
    made = plan("ring", LONG, 4, pass_="backward")
    loops, walked = walk(recovered_whole(made))
    first = next(iter(walked.targets.values()))
    first[min(first)]["DKV"] = "DKV", "elsewhere"
    with pytest.raises(AssertionError):
        Counted(made, loops, walked).check()


def test_sums_for_a_part_of_what_they_are_added_to_are_refused() -> None:
    """Rank 1 sends sums for one piece of keys of rank 0, where they would be added to both."""
    made = plan("group-cast:layout=zigzag", LONG, 2, pass_="backward")
    with pytest.raises(PlanError, match="partial DKV meets blocks that it is not of"):
        walk(recovered_whole(made))


@pytest.mark.parametrize(("name", "ranks"), [("ring", 4), ("double-ring", 8), ("balanced", 5)])
def test_the_owner_of_a_value_is_who_has_its_blocks(name: str, ranks: int) -> None:
    made = plan(name, LONG, ranks)
    loops, walked = walk(recovered_whole(made))
    axes, sizes = (("rank",), ("RANKS",)), (("outer", "inner"), ("OUTER", "INNER"))
    axis, size = axes if len(loops.mesh) == 1 else sizes
    asked = 0
    for (value, t), held in walked.values["kv"].named.items():
        if t is None:
            continue
        names = Names(axis, t, sizes=dict(zip(loops.mesh, size, strict=True)))
        said = owner(made, walked, "kv", value, Domain(loops, [t], names))
        table = held.table[:, 0, 0]
        owners = made.partition.kv.owners[table]
        for rank, at in enumerate(loops.coordinates()[:, :-1].tolist()):
            known = names.values | dict(zip(axis, at, strict=True)) | {"RANKS": ranks, "step": 0}
            assert table[rank] < 0 or eval(said.text, known | {"rank": rank}) == owners[rank]
            assert table[rank] < 0 or said.ranks[0, rank] == owners[rank]
            asked += 1
    assert asked


# ---- variables

SPANS = st.dictionaries(
    st.tuples(st.sampled_from(["q", "kv"]), st.sampled_from([OWN, "A", "B", "C", "D"])),
    st.tuples(st.integers(0, 9), st.integers(0, 9)).map(lambda ends: (min(ends), max(ends) + 1)),
)


@given(SPANS)
def test_what_lives_at_one_time_has_names_of_its_own(spans: dict[tuple[str, str], Span]) -> None:
    names = named(spans, lambda _: numbered("x", "y, z"))
    assert names.keys() == spans.keys()
    for one, other in combinations(spans, 2):
        (a, b), (c, d) = spans[one], spans[other]
        if a < d and c < b:
            assert names[one] != names[other]
    if len(spans) == 1:
        assert [*names.values()] == ["x"]


def test_a_copy_of_which_a_later_one_came_is_not_read() -> None:
    loops = recover(plan("ring", LONG, 4))
    assert ("kv", "A") in input_spans(loops)
    late = tuple(
        replace(s, kv=(replace(s.kv[0], lag=2),)) if isinstance(s, Attend) else s
        for s in loops.statements
    )
    with pytest.raises(PlanError, match="still read when the next one"):
        input_spans(replace(loops, statements=late))


def test_a_value_that_begins_again_is_not_read_as_it_was() -> None:
    loops = recover(plan("double-ring:node=2", LONG, 8))
    assert input_spans(loops)
    again = [
        replace(s, part=replace(s.part, value=OWN))
        if isinstance(s, Start) and s.part.value == s.name
        else s
        for s in loops.statements
    ]
    with pytest.raises(PlanError, match="still read when the next one"):
        input_spans(replace(loops, statements=tuple(again)))
