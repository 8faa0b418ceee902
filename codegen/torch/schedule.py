"""The schedule of a torch program: its passes, and the functions that they share."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from codegen.assemble import Part, parts_of
from codegen.lowered.conditions import SIZES
from codegen.lowering.keeping import Kept, kept
from codegen.reflow import reflow
from codegen.text import Data, listed
from codegen.torch.origins import in_order, single_runs, step_of
from codegen.torch.passes import Pass
from planner.columns import twice
from planner.errors import PlanError
from planner.ir import Plan
from planner.loops.expand import Expansion, pairs
from planner.loops.form import Attend, Exchange, Ints, Loops, Moves, Send

MOVES = {("Q",), ("DOUT",), ("KV",), ("Q", "DOUT", "STATS"), ("OUT",), ("DQ",), ("DKV",)}
PARTS = "passing", "merge", "kernels", "sums", "bands", "visitors"
EVERY_RANK = {
    "on": "def exchange(x: Any, to: int, src: int, group: Any) -> Any:",
    "started": "    return Message(dist.batch_isend_irecv(ops), sent, lambda: received)",
}
TIMED = {  # in some steps none is sent
    "works": "    for work in message.works if message else ():",
    "brought": "    return message.result() if message else []",
}
ONE_RUN = {
    "tiles": "def tiles(own: range, others: range) -> list[Any]:",
    "boxes": "    for i0, i1, j0, j1, *ends in BOXES:",
    "append": "                calls.append((slice(i, j), slice(m, n), band))",
}
ALL_KEYS = {"triangles": "def triangles(tokens: Tensor) -> Iterator[tuple[slice, slice, bool]]:"}


def kept_by_torch(passes: Sequence[Expansion]) -> Kept:
    """Find what the backward pass holds; PlanError unless an all-to-all each brought Q and KV."""
    keeping = kept(passes)
    moved = sorted(s.tensors for rows in passes for s in swaps(rows.loops))
    if keeping and (len(keeping) < 2 or moved != [("DOUT",), ("KV",), ("Q",)]):
        raise PlanError("the backward pass begins with copies of more than Q, KV and OUT")
    return keeping


def swaps(loops: Loops) -> Iterator[Exchange]:
    """The exchanges in which receivers get some heads."""
    return (s for s in loops.exchanges.values() if s.heads)


def likes_function(loops: Loops, unequal: bool) -> list[str]:
    """The function that gives tensors like those that the forward pass returns."""
    axis = next(swaps(loops)).axis
    n = SIZES[len(loops.mesh)][axis]
    out, results = ("out", "results") if unequal else ("q.clone()", "queries.clone()")
    return [
        "",
        "",
        "@forward.register_fake",
        "def outputs_like(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> list[Tensor]:",
        '    """Tensors like all that forward returns."""',
        f"    queries, k, v = (torch.cat(x.chunk({n}, 1), 2) for x in (q, k, v))",
        "    lse, other = (x[..., :1].to(wide(x), copy=True) for x in (q, queries))",
        *["    out, results = (x.new_empty((*x.shape[:3], V_HEAD_DIM)) for x in (q, queries))"]
        * unequal,
        f"    return [{out}, lse, queries, k, v, {results}, other]",
    ]


def print_loops(passes: Sequence[Expansion], free: bool) -> str:
    """The schedule of a program: its passes, and the functions that they share.

    `free`: it takes any length.
    """
    plan, loops = passes[0].plan, [rows.loops for rows in passes]
    for rows in passes:
        check_form(rows.plan, rows.loops)
    keep = kept_by_torch(passes)
    data: Data = {}
    made = [Pass(rows, loops, keep, free, data) for rows in passes]
    direct = not any(each.overlapped for each in made)
    bodies = [each.function(direct) for each in made]
    meshes, lines = {each.mesh for each in loops if len(each.mesh) > 1}, list[str]()
    if len(meshes) > 1:
        raise PlanError("the two passes arrange the ranks in different meshes")
    for mesh in meshes:
        names = SIZES[len(mesh)]
        lines += [
            "",
            f"{', '.join(names)} = {', '.join(map(str, mesh))}  # rank = outer * INNER + inner",
        ]
    lines += listed(data)
    written = "\n".join(line for body in bodies for line in body)
    if "pieces(" in written:
        lines += pieces_function(plan, loops, free, "*range(" in written)
    for body in bodies:
        lines += ["", "", *body]
    if keep:
        work = plan.workload
        lines += likes_function(loops[0], work.v_head_dim != work.head_dim)
    return "\n".join(reflow(lines)) + "\n"


def parts_called(
    plans: Sequence[Plan], loops: Sequence[Loops], passes: str
) -> tuple[list[Part], frozenset[str]]:
    """The parts that printed passes call, and the marks of lines in them that calls ask for."""
    called = [n for n in ast.walk(ast.parse(passes)) if isinstance(n, ast.Call)]
    calls = [(ast.unparse(call.func), call.args) for call in called]
    one = "tiles" in dict(calls) and single_runs(plans[0], loops)
    partly = any(name == "exchange" and len(args) > 4 for name, args in calls)
    given = {len(args) for name, args in calls if name == "triangles"}
    marks = {
        "some" if partly else "every",
        "" if one else "many",
        "" if one and not touching(plans[0].workload.mask.region().pieces) else "several",
        "all" if given == {1} else "keys",
    }
    marks |= {"later" if re.search(r"wait\((x|swap|gather|reduce)\b", passes) else "direct"}
    lines = (
        (TIMED if " else None" in passes else {})
        | ({} if partly else EVERY_RANK)
        | (ONE_RUN if one else {})
        | (ALL_KEYS if given == {1} else {})
    )
    return parts_of("torch", *PARTS, **lines), frozenset(marks)


def touching(boxes: Ints) -> bool:
    """True if boxes of a mask share rows or columns, so that calls may go on in another box."""
    i0, i1, j0, j1, *_ = boxes.T[:, :, None]
    rows, columns = ((y > x.T) & (x < y.T) for x, y in ((i0, i1), (j0, j1)))
    return int((rows | columns).sum()) > len(boxes)


def pieces_function(plan: Plan, loops: Sequence[Loops], free: bool, several: bool) -> list[str]:
    """The function that gives the positions of a rank, or of `several`, as ranges, or as one."""
    step, seq = step_of(plan), ", seq" * free
    by = "" if step <= 1 else ", RANKS" if step == plan.ranks else f", {step}"
    given, said, own = f"{seq[2:]}{', ' * bool(seq)}rank", "a rank", f"positions(rank{seq})"
    each, cached = f"range(int({{0}}[0]), int({{0}}[-1]) + 1{by})", ["@cache"]
    if several:
        given, said = given.replace("rank", "*ranks"), "ranks, in order of the sequence"
        own = f"torch.cat([{own} for rank in ranks]).sort().values"
    if several or not step:
        body = [
            f"tokens = {own}",
            "runs = tokens.tensor_split(((tokens.diff() != 1).nonzero()[:, 0] + 1).tolist())",
            f"return tuple({each.format('x')} for x in runs)",
        ]
    elif in_order(plan):
        first, end = (f"{n} * {seq[2:] or 'SEQ'} // RANKS" for n in ("rank", "(rank + 1)"))
        cached, body = [], [f"return range({first}, {end})"]
    else:
        body = [f"own = {own}", f"return {each.format('own')}"]
    if step and not several and not single_runs(plan, loops):
        body[-1] = f"return ({body[-1].removeprefix('return ')},)"
    head = [f"def pieces({given}):", f'    """The positions of the tokens on {said}."""']
    return ["", "", *cached, *head, *(f"    {line}" for line in body)]


def check_form(plan: Plan, loops: Loops) -> None:
    """Raise PlanError for messages that are not printed, and for pieces of several sizes."""
    if len(loops.mesh) > 2:
        raise PlanError(f"ranks form a mesh of {len(loops.mesh)} axes, more than two")
    for s in loops.statements:
        if isinstance(s, Moves) and s.tensors not in MOVES:
            raise PlanError(f"a message carries {' and '.join(s.tensors)}")
        if isinstance(s, Send) and len(s.parts) > 1:
            raise PlanError("a message carries blocks that came in several")
    bringing = defaultdict[tuple[str, str, int], list[Send]](list)
    for s in (s for s in loops.statements if isinstance(s, Send) and not s.sums):
        for t in s.when.steps:
            bringing[s.side, s.name, t].append(s)
    for (*_, t), sends in bringing.items():
        if len(sends) > 1 and twice(np.concatenate([pairs(loops, s, t)[1] for s in sends])):
            raise PlanError("in a step, several messages bring a rank keys, or queries")
    cut = any(p.pieces for s in loops.statements if isinstance(s, Attend) for p in (*s.q, *s.kv))
    sizes = {*plan.partition.q.sizes.tolist(), *plan.partition.kv.sizes.tolist()}
    if cut and len(sizes) > 1:
        raise PlanError("pieces of queries and of keys differ in length")
    for name, side in (("queries", plan.partition.q), ("keys", plan.partition.kv)):
        if len(set(side.sizes.tolist())) > 1:
            raise PlanError(f"pieces of {name} differ in length")
        if (side.owned(plan.ranks) < 0).any():
            raise PlanError(f"some ranks own more pieces of {name} than others")
        if any((np.diff(shard) < 0).any() for shard in side.shards(plan.ranks)):
            raise PlanError(f"pieces of {name} are in another order than that of the sequence")
