"""Torch programs printed from loops: exact, short, tidy, and whole under torch.compile."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from codegen.lowered.conditions import Domain
from codegen.programs import Program, program_of
from codegen.text import Names
from codegen.torch import write
from codegen.torch.schedule import print_loops
from codegen.torch.transfers import Transfer
from planner.errors import PlanError
from planner.loops.form import Attend, Expr, Loops, Part, Send, Shift, When
from planner.masks import Blocks, Causal, Documents, Full, Global, Mask, Prefix, Slices, Window
from planner.planning import plan
from planner.workload import Workload
from runtimes.reference import dense

torch = pytest.importorskip("torch")
runtime = pytest.importorskip("in_memory.threads")
memory_dist = pytest.importorskip("in_memory.distributed")
launch = pytest.importorskip("runtimes.torch.launch")

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
    ("allgather", 4, Causal()),
    ("allgather", 3, Full()),
    ("ulysses", 4, Causal()),
    ("usp:ulysses=2", 8, Causal()),
    ("usp:ulysses=2", 4, Full()),
    ("ring", 4, DOCUMENTS),
    ("striped", 4, DOCUMENTS),
    ("ulysses", 4, DOCUMENTS),
    ("ring", 4, Causal() & Window(20, 0)),
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
    assert made.loops is not None, made.irregular
    print_loops(made.plans, made.loops)
    return write(made)


def loaded(text: str, folder: Path) -> ModuleType:
    """An emitted program as a module whose ranks may be threads."""
    import importlib.util

    path = folder / f"program_{abs(hash(text))}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    memory_dist.installed(module)
    return module


def largest_errors(module: ModuleType, work: Workload) -> list[float]:
    """Largest errors of output and gradients on threads against dense attention."""
    random = np.random.default_rng(0)
    sizes = (work.heads, work.seq), (work.kv_heads, work.kv_seq), (work.kv_heads, work.kv_seq)
    arrays = [random.normal(size=(work.batch, *s, work.head_dim)) for s in (*sizes, sizes[0])]
    exact = [dense.forward(work, *arrays[:3])[0], *dense.backward(work, *arrays)]
    *inputs, dout = map(torch.from_numpy, arrays)

    def body(group: Any) -> list[Any]:
        shard = partial(module.shard, rank=group.rank())
        given = [shard(x, side=s).requires_grad_() for x, s in zip(inputs, SIDES, strict=True)]
        out = module.attention(*given, group=group)
        out.backward(shard(dout))
        return [out.detach(), *(x.grad for x in given)]

    results, _ = runtime.on_threads(module.RANKS, body)
    wholes = [
        module.unshard(x, side=s)
        for x, s in zip(zip(*results, strict=True), ("q", *SIDES), strict=True)
    ]
    return [np.abs(a.numpy() - b).max() for a, b in zip(wholes, exact, strict=True)]


SIDES = ("q", "kv", "kv")
LIMITS = (1e-12, 1e-11, 1e-11, 1e-11)


def exact(module: ModuleType, work: Workload) -> bool:
    errors = largest_errors(module, work)
    return all(a <= b for a, b in zip(errors, LIMITS, strict=True))


@pytest.mark.parametrize(("name", "ranks", "mask"), REGULAR, ids=str)
def test_programs_of_loops_are_exact(name: str, ranks: int, mask: Mask, tmp_path: Path) -> None:
    made = program(name, ranks, mask)
    assert exact(loaded(by_loops(made), tmp_path), made.work)


def test_a_wrong_guard_is_refused_or_wrong(tmp_path: Path) -> None:
    """A check that cannot fail is none: keys that go a rank further than the plan has it."""
    made = program("zigzag", 4, Causal())
    assert made.loops
    text = by_loops(made)
    wrong = text.replace("if rank >= step else", "if rank > step else")
    assert wrong != text
    assert not exact(loaded(wrong, tmp_path), made.work)


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
    with pytest.raises(PlanError, match="several values"):
        print_loops(made.plans[:1], [two])
    halved = changed(backward, Send, parts=(Part("A"), Part("own")))
    with pytest.raises(PlanError):
        print_loops(made.plans[1:], [halved])


def test_any_length_and_any_heads_go_where_nothing_binds_them(tmp_path: Path) -> None:
    made = program("zigzag", 4, Causal())
    module = loaded(by_loops(made), tmp_path)
    for tokens, heads, batch in ((2, 4, 2), (6, 3, 1)):
        work = replace(
            made.work, seq=4 * tokens, kv_seq=4 * tokens, heads=heads, kv_heads=1, batch=batch
        )
        assert exact(module, work)


def test_a_distance_that_changes_every_other_step_is_no_formula_of_the_step() -> None:
    names, hop = Names(("rank",)), Shift((Expr(1, 1, period=2),))
    send = Send(When(0, 7), "A", ("KV",), (Part("A"),), hop)
    move = Transfer(send, None, None, Domain(Loops((8,), 8, (send,)), range(8)), names)
    assert move.peers(replace(names, at=5)) == ("(rank + 3) % RANKS", "(rank - 3) % RANKS")
    with pytest.raises(PlanError, match="changes in rounds"):
        move.peers(names)
