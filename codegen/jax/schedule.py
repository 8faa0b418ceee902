"""The schedule of a program, printed from its loops: `forward`, `backward`, and their messages."""

from codegen.jax.exchanges import Exchanges
from codegen.jax.hops import Hops
from codegen.jax.passes import Pass
from codegen.jax.runs import WORD, lines, runs
from codegen.jax.words import Names
from codegen.programs import Program
from planner.ir import Plan
from planner.loops.form import AllToAll, Gather, Loops, Send

IMPORTS = "import jax\nimport jax.numpy as jnp\nimport numpy as np\nfrom jax import lax\n"
HEADS = {
    "forward": (
        "def forward(q, k, v, axis):",
        '    """Output and log-sum-exp of a device\'s queries."""',
    ),
    "backward": (
        "def backward(axis, saved, dout):",
        '    """Gradients of a device\'s queries, keys and values."""',
        "    q, k, v, out, lse, _ = saved",
    ),
}
RESULTS = {
    "forward": (["out", "lse"], "    return out.astype(q.dtype), lse, ()"),
    "backward": (
        ["dq", "dkv"],
        "    return dq.astype(q.dtype), *(x.astype(k.dtype) for x in dkv)",
    ),
}


def print_loops(program: Program) -> str:
    """The text of the schedule. Raises PlanError for loops that it cannot print."""
    assert program.loops
    text = list[str]()
    exchanges, hops = Exchanges(program), None
    for plan, loops in zip(program.plans, program.loops, strict=True):
        hops = Hops(loops, hops.texts if hops else {})
        text += ["", "", *print_pass(plan, loops, hops, exchanges)]
    assert hops
    constants = [f"{name} = {value}" for name, value in exchanges.constants.items()]
    head = [IMPORTS, "# ---- Schedule", "", *constants]
    return "\n".join([*head, *text, *hops.lines(), *exchanges.lines()]) + "\n"


def print_pass(plan: Plan, loops: Loops, hops: Hops, exchanges: Exchanges) -> list[str]:
    """One function."""
    names = named(loops)
    made = Pass(plan, loops, names, hops, exchanges, travels_with_stats(loops))
    blocks = made.blocks(runs(loops))
    results, end = RESULTS[plan.pass_]
    body = lines(blocks, results, loops)
    head = [*HEADS[plan.pass_]]
    words = set(WORD.findall(" ".join(body)))
    if words & {"rank", *names.axes}:
        head.append("    rank = lax.axis_index(axis)")
        if len(loops.mesh) == 2:
            head.append(f"    {', '.join(names.axes)} = divmod(rank, {names.sizes[1]})")
    if "delta" in words:
        head.append("    delta = (dout * out).sum(-1, keepdims=True, dtype=wide(q))")
    return [*head, *body, end]


def named(loops: Loops) -> Names:
    """Names of coordinates and sizes."""
    if len(loops.mesh) == 1:
        return Names(("rank",), ("RANKS",))
    return Names(tuple("ghij"[: len(loops.mesh)]), tuple(map(str, loops.mesh)))


def travels_with_stats(loops: Loops) -> bool:
    """True if queries go to others without their output."""
    moves = (s for s in loops.statements if isinstance(s, Send | Gather | AllToAll))
    return any("STATS" in s.tensors for s in moves)
