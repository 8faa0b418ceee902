"""The schedule of a program, printed from its loops: `forward`, `backward`, and their messages."""

from dataclasses import replace

from codegen.jax.exchanges import Exchanges
from codegen.jax.hops import Hops
from codegen.jax.passes import Pass
from codegen.jax.runs import WORD, lines, runs
from codegen.lowered.conditions import AXES, SIZES
from codegen.lowered.keeping import Kept, kept
from codegen.lowered.walk import settled
from codegen.programs import Program
from codegen.reflow import reflow
from codegen.text import Names
from planner.errors import PlanError
from planner.ir import Plan
from planner.loops.form import Exchange, Loops, Send

IMPORTS = (
    "import jax\nimport jax.numpy as jnp\nimport numpy as np\nfrom jax import lax\n"
    "from jax.ad_checkpoint import checkpoint_name\n"
)
HEADS = {
    "forward": (
        "def forward(q, k, v, axis):",
        '    """Output, and what the backward pass needs, named for checkpoint policies."""',
    ),
    "backward": (
        "def backward(axis, saved, dout):",
        '    """Gradients of a device\'s queries, keys and values."""',
    ),
}
FEW = 3  # ranks that a program writes as a number
RESULTS = {"forward": ["out", "lse"], "backward": ["dq", "dkv"]}


def print_loops(program: Program) -> str:
    """The text of the schedule. Raises PlanError for loops that it cannot print."""
    assert program.loops
    sides = program.forward.partition.q, program.forward.partition.kv
    if not all(sum(map(len, chunk)) for side in sides for chunk in side.chunks):
        raise PlanError("pieces of no tokens")
    text = list[str]()
    exchanges, hops = Exchanges(program), Hops(program.loops[0])
    keeping = kept(program.plans, program.loops)
    for plan, loops in zip(program.plans, program.loops, strict=True):
        hops = replace(hops, loops=loops)
        text += ["", "", *print_pass(plan, loops, hops, exchanges, keeping)]
    named_once = exchanges.constants | hops.constants
    constants = [f"{name} = {value}" for name, value in named_once.items()]
    if len(mesh := program.loops[0].mesh) > 1:
        names = named(program.loops[0])
        said = " x ".join(names.axes)
        constants.insert(
            0, f"{', '.join(SIZES[len(mesh)])} = {', '.join(map(str, mesh))}  # {said}"
        )
    if len({loops.mesh for loops in program.loops}) > 1:
        raise PlanError("passes over different meshes")
    head = [IMPORTS, "# ---- Schedule", "", *constants]
    if program.work.sinks and keeping.q:
        text += exchanges.share_of(keeping.q, program.loops[0])
    return "\n".join(reflow([*head, *text])) + "\n"


def print_pass(
    plan: Plan, loops: Loops, hops: Hops, exchanges: Exchanges, keeping: Kept
) -> list[str]:
    """One function."""
    loops, walked = settled(plan, loops)
    names = named(loops)
    moves = (s for s in loops.statements if isinstance(s, Send | Exchange))
    stats = any("STATS" in s.tensors for s in moves)
    made = Pass(plan, loops, walked, names, hops, exchanges, stats, keeping)
    blocks = made.blocks(runs(loops))
    head, saved = [*HEADS[plan.pass_]], made.saved() if plan.pass_ == "forward" else []
    if plan.pass_ == "backward":
        held = [
            *["held_q", "held_out", "held_lse"] * bool(keeping.q),
            *["held_kv"] * bool(keeping.kv),
        ]
        head.append(f"    {', '.join(['q, k, v, out, lse', *held])} = saved")
    results = [*RESULTS[plan.pass_], *saved]
    body = lines(blocks, results, names)
    words = set(WORD.findall(" ".join(body)))
    known = {name: text for name, text in made.positions.items() if name in words}
    words |= set(WORD.findall(" ".join(known.values())))
    index, places = "lax.axis_index(axis)", [x for x in names.axes if x in words]
    if "rank" in words:
        head.append(f"    rank = {index}")
        index = "rank"
    if len(loops.mesh) > 1 and places:
        sign = {"outer": f"{index} // INNER", "inner": f"{index} % INNER"}
        value = sign[places[0]] if len(places) == 1 else f"divmod({index}, INNER)"
        head.append(f"    {', '.join(places)} = {value}")
    if "seq" in words:
        head.append("    seq = RANKS * q.shape[2]")
    head += [f"    {name} = {text}" for name, text in known.items()]
    if "delta" in words:
        head.append("    delta = (dout.astype(wide(q)) * out).sum(-1, keepdims=True)")
    return [*unused(head, words), *body, *ending(plan.pass_, saved)]


def ending(pass_: str, saved: list[str]) -> list[str]:
    """The last lines of a pass; `saved`: values of exchanges that the backward pass takes again."""
    if pass_ == "backward":
        return ["    return dq.astype(q.dtype), *(x.astype(k.dtype) for x in dkv)"]
    name = 'checkpoint_name(out, "attention_out"), checkpoint_name(lse, "attention_lse")'
    kept = [f'    kept = checkpoint_name([{", ".join(saved)}], "attention_kept")'] if saved else []
    more = ", *kept" if saved else ""
    return [
        *kept,
        f"    out, lse = {name}",
        f"    return out.astype(q.dtype), (q, k, v, out, lse{more})",
    ]


def unused(head: list[str], words: set[str]) -> list[str]:
    """The lines before a body, without names of saved arrays that it does not use."""
    used = words | set(WORD.findall(" ".join(head[3:]))) | {"q", "k"}
    if len(head) > 2 and head[2].endswith(" = saved"):
        saved = head[2].strip().removesuffix(" = saved").split(", ")
        head[2] = f"    {', '.join(x if x in used else '_' for x in saved)} = saved"
    return head


def named(loops: Loops) -> Names:
    """Names of coordinates and sizes; steps count from the first one of the longest section."""
    mesh, ranks = loops.mesh, len(loops.coordinates())
    if not loops.statements:
        raise PlanError("a schedule without a step")
    long = max(loops.sections(), key=lambda s: s.last - s.first)
    first = long.first if long.last > long.first else 0
    if len(mesh) > 2:
        raise PlanError(f"a mesh of {len(mesh)} axes")
    sizes = {ranks: "RANKS", **dict(reversed([*zip(mesh, SIZES[len(mesh)], strict=True)]))}
    heads = any(s.again for s in loops.exchanges.values())  # which steps count then
    few = {size: name for size, name in sizes.items() if size > FEW and not heads}
    return Names(AXES[len(mesh)], first, sizes=few)
