"""Programs of schedules, as tests lower and check them."""

from collections.abc import Iterator

from ringloom.codegen.check import check
from ringloom.codegen.ir import Program, Register
from ringloom.codegen.lower import lower
from ringloom.codegen.lowering.keeping import kept_exchanges
from ringloom.codegen.passes import optimize
from ringloom.planner.errors import PlanError
from ringloom.planner.loops import recover_expansion
from ringloom.planner.loops.expand import Expansion
from ringloom.planner.loops.form import Ints
from ringloom.planner.masks.parsing import parse
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload

SCHEDULES = (
    *("ring", "striped", "zigzag", "burst", "balanced", "bidirectional", "tokenring"),
    *("double-ring", "broadcast", "allgather", "decode-a2a", "mesh2d", "ulysses", "usp"),
    *("ulysses-gather", "llama3", "head-chunks"),
)
Held = dict[Register, Ints]


def masks(ranks: int) -> tuple[str, ...]:
    """Masks for sequences of 16 tokens a rank."""
    seq = 16 * ranks
    first, second = seq // 5, seq // 3
    documents = f"{first},{second},{seq - first - second}"
    return (
        "causal",
        "full",
        f"causal & window:{seq // 4}",
        "window:16,16",
        f"causal & documents:{documents}",
        "prefix:16",
        "chunks:4 & causal",
    )


def workload(ranks: int, mask: str) -> Workload:
    """A small workload, of which each rank may get equally many heads."""
    sizes = {"seq": 16 * ranks, "heads": 2 * ranks, "kv_heads": ranks, "head_dim": 4}
    return Workload(**sizes, mask=parse(mask), dtype="float64")


def expansions(name: str, ranks: int, mask: str) -> list[Expansion]:
    """The loops of both passes; PlanError where there are none."""
    passes = ("forward", "backward")
    plans = [plan(name, workload(ranks, mask), ranks, pass_=pass_) for pass_ in passes]
    return [recover_expansion(p) for p in plans]


def programs(name: str, ranks: int, mask: str) -> Iterator[tuple[Program, Expansion, Held]]:
    """Both passes, lowered and checked; with what the backward pass holds."""
    passes, held = expansions(name, ranks, mask), Held()
    for rows in passes:
        program = optimize(lower(rows, kept_exchanges(passes)))
        left = check(program, rows, held)
        yield program, rows, held
        held = left


def lowers(name: str, ranks: int, mask: str) -> bool:
    """True if both passes are lowered; the check has to accept what is."""
    try:
        passes = expansions(name, ranks, mask)
        lowered = [lower(rows, kept_exchanges(passes)) for rows in passes]
    except PlanError:
        return False
    held = Held()
    for program, rows in zip(lowered, passes, strict=True):
        held = check(optimize(program), rows, held)
    return True
