"""The rules of tables: each rank sends, attends and drops what they say, and nothing else."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ringloom.codegen.programs import program_of
from ringloom.codegen.steps import last_reads, with_statistics
from ringloom.codegen.torch import write
from ringloom.planner.ir import Attend, InitialCopy, Move, Step
from ringloom.planner.masks import Causal, Full
from ringloom.planner.planning import plan
from ringloom.planner.plans import Plans
from ringloom.planner.verify import verify
from ringloom.planner.workload import Workload
from ringloom.runtimes.arrays import draw

torch = pytest.importorskip("torch")

from in_memory.network import Receive  # noqa: E402  only where torch is
from rank_threads import assert_exact, in_threads, load  # noqa: E402  only where torch is

HEADS = {"heads": 4, "kv_heads": 2, "head_dim": 4, "dtype": "float64"}


def by_tables(plans: Plans) -> ModuleType:
    """The program of plans as tables, whether they are regular or not."""
    return load(write(program_of(plans, "torch").as_tables("by a test")))


def other_band(steps: Any) -> None:
    steps[0][1][2][0][2] = [[True, [], [], [], []]]


def no_call(steps: Any) -> None:
    steps[0][1][2][0][2] = []


def early_drop(steps: Any) -> None:
    steps[0][0][3] = steps[0][1][3]


def other_block(steps: Any) -> None:
    steps[0][0][1][0][2] ^= 1


@pytest.fixture(scope="module")
def ring_of_two() -> tuple[ModuleType, Plans]:
    """Rank 0 gets the keys of rank 1 in the first step, meets them in the second and drops them."""
    pair = plan("ring", Workload(seq=24, mask=Full(), **HEADS), 2, pass_="both")
    return by_tables(pair), pair


@pytest.mark.parametrize("change", [other_band, no_call, early_drop, other_block])
def test_a_wrong_table_is_noticed(
    ring_of_two: tuple[ModuleType, Plans],
    change: Callable[[Any], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program, pair = ring_of_two
    assert_exact(program, pair)
    change(wrong := deepcopy(program.TABLES["FORWARD"]))
    monkeypatch.setitem(program.TABLES, "FORWARD", wrong)
    with pytest.raises((AssertionError, KeyError)):
        assert_exact(program, pair)


def test_finished_sums_travel_in_the_type_of_the_model() -> None:
    work = Workload(seq=32, mask=Full(), **HEADS)
    program, sent = by_tables(plan("usp:ulysses=2", work, 4, pass_="both")), list[Any]()
    plain = program.start
    noted = lambda out, *rest: (sent.extend(x for x, _ in out), plain(out, *rest))[1]  # noqa: E731
    program.start = noted  # type: ignore[attr-defined]
    arrays = [torch.from_numpy(x).to(torch.bfloat16) for x in draw(work, 0)[:3]]

    def body(group: Any) -> None:
        program.attention(*(program.shard(x, group.rank()) for x in arrays), group=group)

    in_threads(4, body)
    assert {x.dtype for x in sent if x.shape[-1] > 1} == {torch.bfloat16}
    assert {x.dtype for x in sent if x.shape[-1] == 1} == {torch.float32}, "the log-sum-exp"


def test_statistics_travel_with_dout_where_the_forward_pass_leaves_out() -> None:
    """Rank 1 would have OUT, and sends the statistics of DOUT on after its attend."""
    work = Workload(seq=6, heads=1, head_dim=2, mask=Full(), dtype="float64")
    backward = plan("ring", work, 3, pass_="backward")
    comes, attended = Move(("DOUT",), [[0]], [0], [1]), Attend([1], [[0]], [[1]])
    goes = Move(("STATS",), [[0]], [1], [2])
    steps = Step((), (comes,)), Step((attended,), ()), Step((), (goes,))
    start = InitialCopy(("OUT",), [[0]], [1]), InitialCopy(("Q",), [[0]], [1])
    made = with_statistics(replace(backward, start=start, buffers=(), steps=steps))
    assert made.start == start[1:]
    assert made.steps[0].moves == (replace(comes, tensors=("DOUT", "STATS")),)
    assert [*last_reads(made, "STATS")] == [(1, 0, 2), (2, 0, 2)]


def test_an_attend_waits_for_its_own_blocks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 gets keys in the first step, meets its own in the second and those in the third."""
    work = Workload(seq=24, mask=Full(), **HEADS)
    pair = plan("ring", work, 2, pass_="both")
    own, other = pair.forward.steps
    late = replace(pair.forward, steps=(Step((), own.moves), Step(own.attends, ()), other))
    plans, events = Plans(verify(late), pair.backward), list[str]()
    program, waited = by_tables(plans), Receive.wait
    attend = program.attend_blocks

    def noted(memory: Any, queries: Any, keys: list[int], calls: Any) -> None:
        attend(memory, queries, keys, calls)
        events.extend(["attend"] * (memory.group.rank() == 0))

    def wait(self: Receive, *given: Any) -> Any:
        events.extend(["wait"] * (self.rank == 0))
        return waited(self, *given)

    monkeypatch.setattr(program, "attend_blocks", noted)
    monkeypatch.setattr(Receive, "wait", wait)
    arrays = [torch.from_numpy(x) for x in draw(work, 0)[:3]]

    def body(group: Any) -> None:
        program.attention(*(program.shard(x, group.rank()) for x in arrays), group=group)

    in_threads(2, body)
    assert events == ["attend", "wait", "wait", "attend"], "k and v come for the second attend"


def test_messages_of_a_step_may_end_as_one() -> None:
    """As in NCCL, where all of a step's messages are one work."""
    pair = plan("usp:ulysses=2", Workload(seq=24, mask=Causal(), **HEADS), 4, pass_="both")
    program = by_tables(pair)
    plain, counts = program.start, list[int]()

    def started(*given: Any) -> Any:
        message = plain(*given)
        works = message.works
        counts.append(len(works))
        one = SimpleNamespace(wait=lambda: [x.wait() for x in works if not x.waited])
        return replace(message, works=[one] if works else [])

    program.start = started  # type: ignore[attr-defined]
    assert_exact(program, pair)
    assert max(counts) > 1
