"""JAX programs printed from loops: exact, as the plan says, and short."""

from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from dense_attention import assert_dense
from jax_in_numpy import replay, replayed
from loop_schedules import FOREIGN, foreign_pair
from ringloom.codegen.programs import Program, program_of
from ringloom.planner.ir import Attend, InitialCopy, Move, Plan, Step
from ringloom.planner.layouts import by_tokens
from ringloom.planner.masks import Causal, Documents, Full, Prefix, Window
from ringloom.planner.passes.adjoint import adjoint
from ringloom.planner.planning import plan, run_passes
from ringloom.planner.verify import verify, verify_pair
from ringloom.planner.workload import Workload
from ringloom.runtimes.arrays import draw
from ringloom.runtimes.emitted import source_of

WORK = Workload(64, heads=4, kv_heads=2, head_dim=4, mask=Causal(), dtype="float64")
UNEVEN = replace(WORK, seq=61, kv_seq=61)
HEADS = replace(WORK, seq=96, kv_seq=96, heads=16, kv_heads=8)
STAGES = ("ulysses-stages", "head-chunks", "ulysses-stages:stages=4")  # some heads at a time
# Schedule, ranks and mask of programs that are loops, though pieces differ or masks cut tiles.
CASES: list[tuple[str, int, Workload]] = [
    *(("ring", 4, w) for w in (WORK, UNEVEN, replace(WORK, mask=Window(10, 0)))),
    ("ring", 4, replace(WORK, mask=Prefix(20))),
    ("ring", 4, replace(WORK, mask=Window(16, 16))),  # sums come where others have left
    ("striped", 4, WORK),
    ("striped", 4, replace(WORK, mask=Documents((20, 11, 13, 20)))),
    *(("zigzag", 4, w) for w in (WORK, UNEVEN)),
    *(("burst", 4, w) for w in (WORK, UNEVEN)),
    *(("balanced", 4, w) for w in (WORK, replace(WORK, mask=Full()))),
    *(("allgather", 4, w) for w in (WORK, replace(WORK, mask=Window(10, 0)))),
    *(("ulysses", 4, w) for w in (WORK, replace(WORK, kv_heads=4, mask=Window(10, 0)))),
    ("usp:ulysses=2", 8, WORK),
    *(("decode-a2a", 4, w) for w in (WORK, replace(WORK, mask=Full()))),
    *((s, 5, replace(WORK, seq=60, kv_seq=60)) for s in ("bidirectional", "tokenring")),
    ("bidirectional", 4, replace(WORK, mask=Full())),
    *((s, 8, WORK) for s in ("double-ring", "double-ring:node=2", "mesh2d")),
    *((s, 8, replace(WORK, mask=Full())) for s in ("double-ring", "mesh2d", "double-ring:node=2")),
    ("mesh2d", 8, replace(WORK, kv_seq=128)),  # of the last of several cases nothing is said
    ("startrail", 4, replace(WORK, mask=Full())),
    *(("llama3", p, replace(HEADS, mask=mask)) for p in (3, 4) for mask in (Causal(), Full())),
    *(("llama3", 4, w) for w in (replace(HEADS, mask=Window(20, 0)), replace(HEADS, heads=32))),
    ("llama3:stride=2", 4, replace(HEADS, v_head_dim=3)),
    *(("llama3:stride=1", 4, replace(HEADS, mask=m)) for m in (Full(), Window(20, 5))),
    *(("head-chunks:stages=4", 4, replace(HEADS, kv_heads=n)) for n in (4, 8, 16)),
    *((s, 4, HEADS) for s in STAGES),
    *((s, 4, replace(HEADS, seq=61, kv_seq=61, kv_heads=4, mask=Full())) for s in STAGES),
    *(("ulysses-gather:ulysses=2", p, replace(WORK, seq=96, kv_seq=96)) for p in (4, 8)),
    ("ulysses-gather:ulysses=3", 6, replace(WORK, seq=72, kv_seq=72, heads=6, kv_heads=3)),
    ("ulysses-gather", 4, replace(HEADS, mask=Full())),
    *(("broadcast", p, replace(WORK, seq=60, kv_seq=60)) for p in (5, 6)),
    ("broadcast", 4, replace(WORK, mask=Full())),
    ("broadcast", 3, replace(WORK, seq=60, kv_seq=60, mask=Full())),  # sums from two sides at once
]


def program(schedule: str, ranks: int, work: Workload) -> Program:
    return program_of(plan(schedule, work, ranks, pass_="both"), "jax")


@pytest.mark.parametrize(("schedule", "ranks", "work"), CASES, ids=str)
def test_loops_match_dense_attention(schedule: str, ranks: int, work: Workload) -> None:
    pair = plan(schedule, work, ranks, pass_="both")
    assert "run_forward" not in source_of(pair, "jax")
    inputs = draw(work, 3)
    assert_dense(work, inputs, replay(pair, *inputs))


@pytest.mark.parametrize(
    ("schedule", "ranks"), [("allgather:layout=contiguous", 4), ("decode-a2a", 8), ("mesh2d", 4)]
)
def test_masked_rectangles_of_any_length_follow_the_arrays(schedule: str, ranks: int) -> None:
    source, work = (
        source_of(plan(schedule, WORK, ranks, pass_="both"), "jax"),
        replace(WORK, seq=128, kv_seq=128),
    )
    assert "any sequence length" in source
    assert "masked(" in source
    inputs = draw(work, 3)
    assert_dense(work, inputs, replayed(source, ranks, *inputs))


def test_a_program_of_stripes_refuses_one_token_on_a_rank() -> None:
    """The diagonal is left out of its rectangles: there, nothing would be left of them."""
    source, built = source_of(plan("striped", WORK, 4, pass_="both"), "jax"), ModuleType("stripes")
    assert "and at least 8" in " ".join(source.split())
    exec(source, vars(built))
    q = np.zeros((1, WORK.heads, 4, WORK.head_dim))
    k = np.zeros((1, WORK.kv_heads, 4, WORK.head_dim))
    with pytest.raises(ValueError, match=r"not float64\[1, \d, 8, \d+\]"):
        built.attention(q, k, k, mesh=SimpleNamespace(shape={"sp": 4}))


def test_messages_along_a_list_of_ranks_are_exact() -> None:
    work = replace(WORK, mask=Full())
    inputs = draw(work, 3)
    assert_dense(work, inputs, replay(foreign_pair("shuffled", work, 8), *inputs))


@pytest.mark.parametrize("name", FOREIGN)
def test_schedules_that_nobody_wrote_this_for_are_exact(name: str) -> None:
    work = replace(WORK, mask=Full())
    inputs = draw(work, 3)
    assert_dense(work, inputs, replay(foreign_pair(name, work, 4), *inputs))


def test_masked_tiles_that_are_attended_in_two_steps_are_no_whole_values() -> None:
    """Whole gathered keys under the positions of a window would count in both steps."""
    work, r = replace(WORK, mask=Window(40, 40)), np.arange(4)
    sides = by_tokens(work, 4, "contiguous")
    q, kv = sides.q.owned(4), sides.kv.owned(4)
    gather = Step((), tuple(Move(("KV",), kv, r, (r + hop) % 4) for hop in (1, 2, 3)))
    every = np.tile(kv.T, (4, 1))
    attends = (Step((Attend(r, q, part),), ()) for part in (every[:, :3], every[:, 3:]))
    made = run_passes(Plan("two", work, 4, sides, "forward", (), (), (gather, *attends)))
    inputs = draw(work, 3)[:3]
    assert_dense(work, inputs, replay(made, *inputs))


def assert_printed(*steps: Step, ranks: int) -> None:
    """A forward plan of these steps, under a full mask, is lowered, and exact."""
    work = Workload(4 * ranks, heads=1, head_dim=2, mask=Full(), dtype="float64")
    made = verify(replace(plan("ring", work, ranks), buffers=(), steps=steps))
    assert program_of(made, "jax").lowered
    inputs = draw(work, 3)[:3]
    assert_dense(work, inputs, replay(made, *inputs))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["after", "before"])
def test_keys_are_sent_once_where_a_step_beside_sends_what_nobody_reads(
    order: tuple[int, int],
) -> None:
    """The two steps have no other statement, and were a loop that sent keys twice."""
    r = np.arange(2)
    own = r[:, None]
    sends = [Step((), (Move((tensor,), own, r, 1 - r),)) for tensor in ("KV", "Q")]
    attends = (Step((Attend(r, own, blocks),)) for blocks in (own, own[::-1]))
    assert_printed(next(attends), *(sends[n] for n in order), *attends, ranks=2)


def test_keys_are_sent_once_where_queries_that_are_sent_beside_them_go_on() -> None:
    r = np.arange(4)
    own, after, before = (r[:, None], (r + 1) % 4, (r - 1) % 4)
    on = [Move(("Q",), own[r - t], r, after) for t in range(3)]
    keys = [Move(("KV",), own, r, to) for to in (after, before)]
    assert_printed(
        Step((Attend(r, own, own),)),
        Step((), (on[0],)),
        Step((), (on[1], keys[0])),
        Step((), (on[2],)),
        Step((Attend(r, own, own[before]), Attend(r, own[after], own[before]))),
        Step((), (Move(("OUT",), own[after], r, after), keys[1])),
        Step((Attend(r, own, own[after]),)),
        ranks=4,
    )


def test_loops_of_steps_that_have_lines_of_their_own_are_printed() -> None:
    """Of a loop with a line for its first step and one for its last, no line was left."""
    r = np.arange(4)
    own = r[:, None]
    attends = [(Attend(r, own, own[r ^ n]),) for n in range(4)]
    on, along, across, back = (
        (Move((tensor,), own[of], r, to),)
        for tensor, of, to in (
            ("KV", r, r ^ 2),
            ("KV", r ^ 2, r ^ 1),
            ("Q", r, r ^ 2),
            ("KV", r, r ^ 1),
        )
    )
    steps = (
        Step(attends[0], on),
        Step(attends[2], along),
        Step(attends[3]),
        Step((), across),
        Step((), back),
        Step(attends[1]),
    )
    assert_printed(*steps, ranks=4)


def test_a_loop_of_jax_that_python_goes_on_with_sends_its_last_message_once() -> None:
    """Queries go two steps further on alone; then they are attended, as their results return."""
    r = np.arange(5)
    own = r[:, None]
    on = [Move(("Q",), own[r - t], r, (r + 1) % 5) for t in range(4)]
    back = [Move(("OUT",), own[r - t], r, (r - t) % 5) for t in (3, 4)]
    visitors = [Attend(r, own[r - t], own) for t in (0, 3, 4)]
    keys = [Move(("KV",), own[(r + t) % 5], r, (r - 1) % 5) for t in (0, 1)]
    attends = [Attend(r, own, own[(r + t) % 5]) for t in (1, 2)]
    assert_printed(
        Step((visitors[0],), (on[0],)),
        Step((), (on[1],)),
        Step((), (on[2],)),
        Step((visitors[1],), (on[3],)),
        Step((visitors[2],), (back[0],)),
        Step((), (back[1],)),
        Step((), (keys[0],)),
        Step((attends[0],), (keys[1],)),
        Step((attends[1],)),
        ranks=5,
    )


def test_sums_that_begin_with_owners_as_others_leave_them_are_exact() -> None:
    """Half of the queries are attended before sums go on, and half in the step in which they do."""
    work = Workload(8, heads=1, head_dim=2, mask=Full(), dtype="float64")
    forward, ring = plan("ring:layout=zigzag", work, 2, pass_="both")
    r, own = np.arange(2), forward.partition.q.owned(2)
    sent = (("KV", r), ("DKV", r), ("DKV", 1 - r))
    keys, first, last = ((Move((tensor,), own[of], r, 1 - r),) for tensor, of in sent)
    halves = [Attend(r, own[:, [n]], own) for n in (0, 1)]
    others = Attend(r, own, own[::-1])
    steps = Step((halves[0],), keys), Step((halves[1], others), first), Step((), last)
    pair = verify_pair(forward, verify(replace(ring, buffers=(), steps=steps)))
    inputs = draw(work, 3)
    assert_dense(work, inputs, replay(pair, *inputs))


def test_results_that_a_backward_pass_holds_beside_statistics_that_come_are_exact() -> None:
    """Of the second stage of heads the forward pass leaves queries and results, of the first none.

    With one element per head, results have the shape of statistics: they were taken for them.
    """
    work = Workload(16, heads=8, kv_heads=2, head_dim=1, mask=Full(), dtype="float64")
    forward = plan("ulysses-stages:stages=2", work, 4, passes=())
    backward = adjoint(forward, keep=("KV",))
    held, steps = list[InitialCopy](), list[Step]()
    for number, step in enumerate(backward.steps):
        late = number and [m for m in step.moves if "STATS" in m.tensors]
        sent = [Move(("DOUT",), m.blocks, m.src, m.dst) for m in late or ()]
        held += [InitialCopy((t,), m.blocks, m.dst) for m in late or () for t in ("Q", "OUT")]
        steps.append(Step(step.attends, (*sent, *(m for m in step.moves if m not in (late or ())))))
    assert held
    start = (*backward.start, *held)
    pair = verify_pair(forward, verify(replace(backward, start=start, steps=tuple(steps))))
    inputs = draw(work, 3)
    assert_dense(work, inputs, replay(pair, *inputs))


def test_the_heads_of_one_step_that_a_backward_pass_holds_are_exact() -> None:
    """The last gather is held, whose sums went back as heads of a step after the last."""
    work = Workload(16, heads=4, head_dim=2, mask=Causal(), dtype="float64")
    forward, backward = plan("llama3:layout=striped", work, 4, pass_="both")
    steps = [*backward.steps]
    last = max(n for n, step in enumerate(steps) if any("KV" in m.tensors for m in step.moves))
    moves = steps[last].moves
    start = tuple(InitialCopy(("KV",), m.blocks, m.dst) for m in moves if "KV" in m.tensors)
    sums = tuple(m for m in moves if "KV" not in m.tensors)
    steps[last] = Step(steps[last].attends, sums)
    pair = verify_pair(forward, verify(replace(backward, start=start, steps=tuple(steps))))
    inputs = draw(work, 3)
    assert_dense(work, inputs, replay(pair, *inputs))


def test_sums_of_two_values_that_leave_for_one_are_exact() -> None:
    """Those that came first have the name of what the others are added to."""
    work, r = Workload(12, heads=1, head_dim=2, mask=Full(), dtype="float64"), np.arange(3)
    forward, ring = plan("ring", work, 3, pass_="both")
    own = forward.partition.q.owned(3)
    near = [(r + n) % 3 for n in (-1, 1)]
    keys = [Move(("KV",), own, r, to) for to in near[::-1]]
    sums = [Move(("DKV",), own[of], r, of) for of in near[::-1]]
    attends = [Attend(r, own, own[of]) for of in (*near, r)]
    steps = Step((), keys), Step(attends[:2]), Step((), sums), Step(attends[2:])
    pair = verify_pair(forward, verify(replace(ring, buffers=(), steps=steps)))
    inputs = draw(work, 3)
    assert_dense(work, inputs, replay(pair, *inputs))


def test_heads_that_some_ranks_attend_later_are_exact() -> None:
    """Their results were put in the place of those of the ranks before."""
    work = Workload(16, heads=4, head_dim=2, mask=Causal(), dtype="float64")
    forward, backward = plan("llama3:layout=striped", work, 4, pass_="both")
    steps = [*forward.steps]
    at = next(n for n, step in enumerate(steps) if step.attends)
    (attend,) = steps[at].attends
    early, later = (attend.select(attend.rank % 2 == n) for n in (1, 0))
    steps[at : at + 1] = Step((early,), steps[at].moves), Step((later,))
    pair = verify_pair(verify(replace(forward, buffers=(), steps=tuple(steps))), backward)
    inputs = draw(work, 3)
    assert_dense(work, inputs, replay(pair, *inputs))


def emitted(source: str) -> ModuleType:
    module = ModuleType("emitted")
    exec(compile(source, "emitted", "exec"), module.__dict__)
    return module
