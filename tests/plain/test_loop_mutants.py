"""Mutants of recovered loops: every one that means other rows, or claims too much, is refused."""

from collections.abc import Iterator
from dataclasses import replace

from loop_schedules import foreign
from ringloom.planner.analysis.kinds import KINDS
from ringloom.planner.errors import PlanError
from ringloom.planner.ir import Pass, Plan
from ringloom.planner.loops import check, recover
from ringloom.planner.loops.expand import Expansion
from ringloom.planner.loops.form import (
    Attend,
    Ends,
    Exchange,
    Expr,
    Loops,
    Part,
    Return,
    Root,
    Send,
    Shift,
    Start,
    Statement,
)
from ringloom.planner.masks import Causal
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload

NAMES = ("zigzag", "balanced", "usp:ulysses=2", "allgather", "burst", "broadcast")
NAMES += ("double-ring:node=3", "llama3:stride=1")
FOREIGN = ("halves",)
FORWARD = ("zigzag", "balanced", "allgather", "usp:ulysses=2", "broadcast")
PASSES: tuple[Pass, ...] = ("forward", "backward")


def plans() -> Iterator[Plan]:
    """All backward, and forward those whose messages a backward pass has no like of."""
    work = Workload(seq=96, heads=12, kv_heads=6, head_dim=4, mask=Causal())
    even = replace(work, heads=16, kv_heads=8)  # for 8 ranks
    for pass_ in PASSES:
        said = FORWARD if pass_ == "forward" else (*NAMES, *FOREIGN)
        yield from (plan(name, work, 6, pass_=pass_) for name in said if name in NAMES)
        yield from (foreign(name, even, 8, pass_) for name in said if name in FOREIGN)


def more(e: Expr, by: int = 1) -> Expr:
    return replace(e, constant=e.constant + by)


def ends(pair: Ends | None) -> list[Ends | None]:
    """Slices that are cut otherwise."""
    if pair is None:
        return [(Expr(), Expr()), (Expr(1), Expr(1))]
    low, high = pair
    return [
        None,
        (more(low), high),
        (more(low, -1), high),
        (low, more(high)),
        (low, more(high, -1)),
    ]


def parts(part: Part) -> Iterator[Part]:
    yield from (replace(part, pieces=e) for e in ends(part.pieces))
    yield from (replace(part, heads=e) for e in ends(part.heads))
    yield from (replace(part, lag=part.lag + by) for by in (1, -1))
    if part.value != "own":
        yield replace(part, value="own")


def whens(s: Statement) -> Iterator[Statement]:
    """Other steps, other guards."""
    when = s.when
    for first, last in ((1, 0), (-1, 0), (0, 1), (0, -1)):
        yield replace(s, when=replace(when, first=when.first + first, last=when.last + last))
    if when.every > 1:
        yield replace(s, when=replace(when, every=when.every + 1))
        yield replace(s, when=replace(when, width=when.width + 1))
    bounds = when.guard.bounds
    for i, (axis, low, high) in enumerate(bounds):
        others = [(axis, more(low), high), (axis, more(low, -1), high)] if low else []
        others += [(axis, low, more(high)), (axis, low, more(high, -1))] if high else []
        for other in others:
            said = (*bounds[:i], other, *bounds[i + 1 :])
            yield replace(s, when=replace(when, guard=replace(when.guard, bounds=said)))
        without = bounds[:i] + bounds[i + 1 :]
        yield replace(s, when=replace(when, guard=replace(when.guard, bounds=without)))
    if bounds:
        turned = replace(when.guard, receiver=not when.guard.receiver)
        yield replace(s, when=replace(when, guard=turned))


def hops(s: Send) -> Iterator[Send]:
    match s.hop:
        case Shift():
            for i, e in enumerate(s.hop.by):
                for other in (more(e), more(e, -1), replace(e, step=e.step + 1)):
                    yield replace(s, hop=Shift((*s.hop.by[:i], other, *s.hop.by[i + 1 :])))
        case Root():
            yield replace(s, hop=replace(s.hop, root=more(s.hop.root)))


def mutants(s: Statement) -> Iterator[Statement]:
    yield from whens(s)
    match s:
        case Start() | Exchange():
            yield from (replace(s, part=p) for p in parts(s.part))
        case Send():
            yield from hops(s)
            for i, part in enumerate(s.parts):
                for p in parts(part):
                    yield replace(s, parts=(*s.parts[:i], p, *s.parts[i + 1 :]))
            if s.into:
                yield from (replace(s, into=p) for p in parts(s.into))
        case Attend():
            for i, part in enumerate(s.q):
                yield from (replace(s, q=(*s.q[:i], p, *s.q[i + 1 :])) for p in parts(part))
            for i, part in enumerate(s.kv):
                yield from (replace(s, kv=(*s.kv[:i], p, *s.kv[i + 1 :])) for p in parts(part))
            yield from (replace(s, kind=k) for k in KINDS if k != s.kind)
        case Return():
            yield from (replace(s, name=name) for name in ("G9", "own", "held"))
            yield from (replace(s, lag=s.lag + by) for by in (1, -1))
    if isinstance(s, Exchange):
        yield from (replace(s, heads=e) for e in ends(s.heads))


def meaning(loops: Loops, made: Plan) -> object:
    """Rows in one order, with the kinds that are said of them; None if there is no meaning."""
    rows = []
    try:
        expansion = Expansion(loops, made)
        for t in range(loops.steps):
            step = expansion.step(t)
            for move in step.moves:
                for s, d, row in zip(move.src, move.dst, move.blocks, strict=True):
                    rows += [(t, move.tensors, int(s), int(d), int(b)) for b in row if b >= 0]
            for attend in step.attends:
                rows += [
                    (t, "attend", int(r), tuple(sorted(q[q >= 0])), tuple(sorted(k[k >= 0])))
                    for r, q, k in zip(attend.rank, attend.q, attend.kv, strict=True)
                ]
    except PlanError:
        return None
    return sorted(rows, key=repr)


def test_mutants_that_mean_other_rows_or_claim_other_kinds_are_refused() -> None:
    caught = same = 0
    for made in plans():
        loops = recover(made)
        truth = meaning(loops, made)
        for i, s in enumerate(loops.statements):
            for mutant in mutants(s):
                changed = (*loops.statements[:i], mutant, *loops.statements[i + 1 :])
                other = replace(loops, statements=changed)
                try:
                    check(other, made)
                except PlanError:
                    caught += 1
                    continue
                assert meaning(other, made) == truth, (made.name, made.pass_, mutant)
                if isinstance(s, Attend) and isinstance(mutant, Attend) and s.kind != mutant.kind:
                    assert mutant.kind == "tiles"
                same += 1
    assert caught >= 500, (caught, same)
    assert same < caught
    print(f"{caught} mutants refused, {same} mean the same rows")


def test_meanings_tell_rows_apart() -> None:
    """Else the comparison above would accept anything."""
    one, two = (next(p for p in plans() if p.name == n) for n in ("zigzag", "burst"))
    assert meaning(recover(one), one) != meaning(recover(two), two)
    assert all(meaning(recover(p), p) for p in (one, two))
