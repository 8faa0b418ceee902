"""The schedule of a program, printed from its loops: `forward`, `backward`, and their messages."""

from dataclasses import replace

from codegen.jax.exchanges import Over
from codegen.jax.hops import Hops, stepwise
from codegen.jax.passes import Pass
from codegen.jax.runs import WORD, lines, runs
from codegen.lowered.conditions import AXES, SIZES
from codegen.lowered.walk import settled
from codegen.lowering.keeping import kept
from codegen.programs import Program
from codegen.reflow import reflow
from codegen.text import Data, Names, listed
from planner.errors import PlanError
from planner.loops.form import Exchange, Loops, Send

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
SAVED = ("q", "k", "v", "out", "lse")


def print_loops(program: Program) -> str:
    """The text of the schedule. Raises PlanError for loops that it cannot print."""
    assert program.passes is not None
    forms = [rows.loops for rows in program.passes]
    sides = program.forward.partition.q, program.forward.partition.kv
    if not all(sum(map(len, chunk)) for side in sides for chunk in side.chunks):
        raise PlanError("some pieces of the sequence have no tokens")
    hops, constants = Hops(forms[0]), dict[str, str]()
    data: Data = {}
    keeping = kept(program.passes)
    made, bodies = list[Pass](), list[list[str]]()
    for rows in program.passes:
        moves = (s for s in rows.loops.statements if isinstance(s, Send | Exchange))
        stats = any("STATS" in s.tensors for s in moves)
        form, walked = settled(rows)
        here = replace(hops, loops=form, stepwise=stepwise(form, walked))
        each = Pass(
            rows.plan, form, walked, named(form, data), here, program, constants, stats, keeping
        )
        made.append(each)
        bodies.append(lines(each.blocks(runs(form, here.stepwise)), each.results, each.names))
    heads = [opening(*both) for both in zip(made, bodies, strict=True)]
    read = set(WORD.findall(" ".join([*heads[-1], *bodies[-1]])))
    saved = [x for x in SAVED if len(made) == 1 or program.work.sinks or x in read]
    if program.backward:
        own = [x if x in read else "_" for x in saved] if read & {*saved} else ["*_"] * bool(saved)
        heads[1].insert(0, f"    {', '.join([*own, *made[1].kept_names])} = saved")
    text = list[str]()
    for each, head, body in zip(made, heads, bodies, strict=True):
        text += ["", "", *HEADS[each.plan.pass_], *head, *body, *each.ending(saved)]
    named_once = [f"{name} = {value}" for name, value in (constants | hops.constants).items()]
    if len(mesh := forms[0].mesh) > 1:
        said = " x ".join(made[0].names.axes)
        sizes = ", ".join(map(str, mesh))
        named_once.insert(0, f"{', '.join(SIZES[len(mesh)])} = {sizes}  # {said}")
    if len({loops.mesh for loops in forms}) > 1:
        raise PlanError("the two passes arrange the ranks in different meshes")
    head = ["# ---- Schedule", "", *named_once, *listed(data)]
    if program.work.sinks and "q" in keeping:
        text += Over(keeping["q"], forms[0], program, constants).share()
    return "\n".join(reflow([*head, *text])) + "\n"


def opening(made: Pass, body: list[str]) -> list[str]:
    """The first lines of a pass: where a device is, positions, and sums over dout, if read."""
    words, names = set(WORD.findall(" ".join(body))), made.names
    known = {name: text for name, text in made.positions.items() if name in words}
    words |= set(WORD.findall(" ".join(known.values())))
    index, places = "lax.axis_index(axis)", [x for x in names.axes if x in words]
    head = list[str]()
    if "rank" in words:
        head.append(f"    rank = {index}")
        index = "rank"
    if len(names.axes) > 1 and places:
        sign = {"outer": f"{index} // INNER", "inner": f"{index} % INNER"}
        value = sign[places[0]] if len(places) == 1 else f"divmod({index}, INNER)"
        head.append(f"    {', '.join(places)} = {value}")
    if "seq" in words:
        head.append("    seq = RANKS * q.shape[2]")
    head += [f"    {name} = {text}" for name, text in known.items()]
    if "delta" in words:
        head.append("    delta = (dout.astype(wide(dout)) * out).sum(-1, keepdims=True)")
    return head


def named(loops: Loops, data: Data) -> Names:
    """Names of coordinates and sizes; steps count from the first one of the longest section."""
    mesh, ranks = loops.mesh, len(loops.coordinates())
    if not loops.statements:
        raise PlanError("the mask leaves nothing to compute")
    long = max(loops.sections(), key=lambda s: s.last - s.first)
    first = long.first if long.last > long.first else 0
    if len(mesh) > 2:
        raise PlanError(f"ranks form a mesh of {len(mesh)} axes, more than two")
    sizes = {ranks: "RANKS", **dict(reversed([*zip(mesh, SIZES[len(mesh)], strict=True)]))}
    heads = any(s.again for s in loops.exchanges.values())  # which steps count then
    few = {size: name for size, name in sizes.items() if size > FEW and not heads}
    return Names(AXES[len(mesh)], first, sizes=few, data=data)
