"""Programs that were once printed wrongly: each is exact on the stand-ins, or runs by tables."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ringloom.codegen import emit
from ringloom.codegen.programs import TARGETS, Target, program_of
from ringloom.planner.ir import Move, Step
from ringloom.planner.masks import Full, Prefix
from ringloom.planner.masks.parsing import parse
from ringloom.planner.passes.pieces import per_piece
from ringloom.planner.passes.relays import shortcut_sums
from ringloom.planner.passes.trim import trim
from ringloom.planner.planning import plan
from ringloom.planner.plans import Plans
from ringloom.planner.verify import verify
from ringloom.planner.workload import Workload
from stand_ins import check

Case = tuple[str, int, tuple[int, int], tuple[int, int], str, Target]
LOOPS: list[Case] = [  # schedule, ranks, (seq, kv_seq), (heads, kv_heads), mask, target
    # tokens of ranks that interleave, one rank after the other
    ("allgather:layout=striped", 6, (36, 72), (2, 1), "chunks:6 & causal", "torch"),
    ("llama3:layout=striped", 4, (32, 96), (8, 4), "causal & window:24", "torch"),
    ("mesh2d:layout=striped", 4, (36, 36), (4, 4), "causal & documents:12,24", "torch"),
    # pieces of keys that are longer than those of queries
    ("double-ring", 4, (24, 72), (2, 1), "causal & documents:8,64", "torch"),
    ("burst:layout=zigzag", 6, (24, 72), (12, 6), "prefix:4", "torch"),
    ("mesh2d", 8, (32, 64), (4, 2), "prefix:42", "torch"),
    # orders of keys and of queries, and keys that the forward pass left
    ("usp:layout=zigzag", 4, (16, 32), (8, 4), "window:14,5", "torch"),
    # slices of heads in steps in which nobody sends
    ("llama3", 2, (8, 8), (2, 2), "chunks:3 & causal", "torch"),
    # slices of heads that some ranks never send
    ("head-chunks", 4, (32, 32), (2, 2), "full", "torch"),
    ("ulysses-stages", 8, (48, 48), (2, 2), "causal & window:10", "torch"),
    # fewer heads of keys than ranks
    ("ulysses", 4, (32, 32), (8, 2), "causal", "torch"),
    ("ulysses", 6, (42, 42), (12, 2), "causal & window:9", "jax"),
    ("ulysses-stages", 4, (32, 64), (8, 2), "prefix:9", "torch"),
    ("usp:ulysses=4", 8, (64, 64), (8, 2), "causal", "jax"),
    # pairs of ranks that change with every other step
    ("usp:layout=zigzag", 8, (64, 64), (2, 2), "causal & documents:21,43", "jax"),
]
TABLES: list[Case] = [
    # pieces of several lengths, of which only the whole is padded
    ("cache-ring", 4, (32, 64), (4, 4), "causal", "jax"),
    ("cache-ring:layout=zigzag", 3, (36, 37), (4, 2), "window:25,13", "jax"),
    ("group-cast", 2, (12, 36), (4, 2), "causal & documents:4,32", "jax"),
    ("halo", 4, (48, 48), (4, 4), "window:22,21", "jax"),
    # gradients of some heads of keys
    ("head-chunks", 2, (16, 48), (2, 2), "causal & window:4", "jax"),
    # slices of heads that some ranks do not have
    ("ulysses-stages", 5, (35, 35), (4, 2), "causal", "jax"),
    # stripes under a causal kernel
    ("ulysses-gather:layout=striped", 4, (24, 24), (8, 4), "causal", "torch"),
]


def plans(case: Case) -> Plans:
    """Both passes of a case."""
    schedule, ranks, (seq, kv_seq), (heads, kv_heads), mask, _ = case
    sizes: dict[str, Any] = {"seq": seq, "kv_seq": kv_seq, "heads": heads, "kv_heads": kv_heads}
    work = Workload(**sizes, head_dim=4, mask=parse(mask), dtype="float64")
    return Plans.of(plan(schedule, work, ranks, pass_="both"))


@pytest.mark.parametrize("case", LOOPS, ids=str)
def test_programs_once_printed_wrongly_are_exact(case: Case) -> None:
    both = plans(case)
    program = program_of(both, case[-1])
    assert program.lowered
    check(program, emit(both, case[-1]))


@pytest.mark.parametrize("case", TABLES, ids=str)
def test_programs_that_cannot_be_loops_run_by_tables(case: Case) -> None:
    both = plans(case)
    assert "(as tables" in " ".join(emit(both, case[-1]).split())


@pytest.mark.parametrize("target", TARGETS)
def test_sums_are_carried_in_all_steps_where_a_message_pauses(target: Target) -> None:
    """They begin a step after the message, whose pauses are counted from its first step."""
    work = Workload(128, heads=4, kv_heads=4, head_dim=4, mask=Prefix(16), dtype="float64")
    both = plan("double-ring", work, 8, pass_="both", passes=(per_piece, trim, shortcut_sums))
    program = program_of(both, target)
    assert program.lowered
    check(program, emit(both, target))


@pytest.mark.parametrize("target", TARGETS)
def test_the_reason_names_tensors_of_queries_that_are_sent_apart(target: Target) -> None:
    work = Workload(16, heads=4, kv_heads=4, head_dim=4, mask=Full(), dtype="float64")
    forward, backward = plan("ulysses:keep=0", work, 4, pass_="both")
    steps = tuple(replace(step, moves=tuple(apart(step))) for step in backward.steps)
    both = Plans(forward, verify(replace(backward, steps=steps)))
    reason = "a message of queries contains only DOUT and STATS"
    assert program_of(both, target).irregular == reason
    assert reason in " ".join(emit(both, target).split())


def apart(step: Step) -> Iterator[Move]:
    """Messages of a step, those of Q apart from those of its gradients."""
    for move in step.moves:
        rest = tuple(tensor for tensor in move.tensors if tensor != "Q")
        for tensors in (rest, ("Q",)) if rest != move.tensors else (rest,):
            yield replace(move, tensors=tensors)
