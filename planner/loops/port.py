# ruff: noqa
# mypy: ignore-errors
"""Plan rows -> a loop program (no schedule known by name) -> rows again.

program ::= mesh, statements                          rank = mixed radix of the coordinates
stmt    ::= when, what                                when: steps first..last (every), a guard
what    ::= Let(name, part)                           from this step on, `name` is that value
          | Send(name, tensors, part, shift | table)  what arrives is `name` from the next step on
          | Gather | Deal(name, tensors, part) along an axis: everything, or slices by receiver
          | Back(tensors, name)                       sums go back over the messages of that exchange
          | Attend(q parts, kv parts, kind)
part    ::= value @ t - lag [pieces lo..hi] [heads lo..hi]       value ::= own | name
guard   ::= ends of coordinates of sender or receiver | first and last step per rank | ranks per step
expr    ::= (c + b (t // p) + a . coordinates) mod m | table[coordinate]

Sums (OUT, DQ, DKV) are named by the inputs that they are sums for, or by the send that brought them.
"""

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import groupby, takewhile

import numpy as np

from planner.errors import PlanError
from planner.ir import ADDS, READS, TENSORS
from planner.tiles import tiles

OWN = "own"


def stack(tables):
    width = max(t.shape[1] for t in tables)
    return np.concatenate([np.pad(t, ((0, 0), (0, width - t.shape[1])), constant_values=-1) for t in tables])


def join(parts):
    """Columns of several nodes as one: (ranks, [ranks,] blocks [, blocks])."""
    return tuple((np.concatenate if c[0].ndim == 1 else stack)(c) for c in zip(*parts))


def rows_of(plan, whole=False):
    """Per step ({tensors: (src, dst, blocks)}, (rank, q, kv) or None); -1 for no block."""
    steps = []
    for step in plan.steps:
        moves = defaultdict(list)
        for m in step.moves:
            moves[m.tensors].append((m.src, m.dst, m.blocks))
        attends = join([(a.rank, a.q, a.kv) for a in step.attends]) if step.attends else None
        steps.append(({k: join(v) for k, v in moves.items()}, attends))
    return trim_whole(plan, steps) if whole else steps


def trim_whole(plan, steps):
    """Messages that nobody needs, or that are empty, do not go; the others go whole."""
    table = {t: np.zeros((plan.ranks, len(plan.side(t))), bool) for t in READS[plan.pass_] + ADDS[plan.pass_]}

    def mark(t, rank, blocks, value):
        r, c = np.nonzero(blocks >= 0)
        table[t][rank[r], blocks[r, c]] = value

    def walk(order, sums):
        for moves, attends in order:
            mine = [k for k in moves if TENSORS[k[0]].accumulates == sums]
            for k in mine:
                src, dst, blocks = moves[k]
                there = [table[t][(src if sums else dst)[:, None], blocks] & (blocks >= 0) for t in k]
                keep = np.any(there, axis=(0, 2))
                moves[k] = src[keep], dst[keep], blocks[keep]
            for value in (False, True):
                for k in mine:
                    for t in k:
                        mark(t, moves[k][1 if value == sums else 0], moves[k][2], value)
            for t in table if attends else ():
                if TENSORS[t].accumulates == sums:
                    mark(t, attends[0], attends[1 if TENSORS[t].side == "q" else 2], True)

    walk(reversed(steps), False)
    walk(steps, True)
    steps = [({k: v for k, v in moves.items() if len(v[0])}, a) for moves, a in steps]
    return [s for s in steps if s[0] or s[1]]




# ---- the form


@dataclass(frozen=True)
class Expr:
    c: int = 0
    t: int = 0
    x: tuple = ()  # coefficients of the coordinates
    mod: int = 0
    table: tuple = ()  # then the rest is its index
    period: int = 1  # rounds of an outer loop: (t - phase) // period for t
    phase: int = 0

    def at(self, t, xs):
        v = self.c + self.t * ((t - self.phase) // self.period) + (xs[:, : len(self.x)] @ np.array(self.x) if self.x else np.zeros(len(xs), int))
        v = v % self.mod if self.mod else v
        return np.array(self.table)[v] if self.table else v

    @property
    def clock(self):
        return "t" if self.period == 1 else f"(t{-self.phase:+d})//{self.period}" if self.phase else f"t//{self.period}"

    def text(self, names):
        terms = [(k, n) for k, n in [*zip(self.x, names), (self.t, self.clock)] if k]
        s = "".join(f"{'-' if k < 0 else '+' if i else ''}{abs(k) if abs(k) > 1 else ''}{n}" for i, (k, n) in enumerate(terms))
        s = f"{s}{self.c:+d}" if s and self.c else s or str(self.c)
        return f"TABLE[{s}]" if self.table else f"({s})%{self.mod}" if self.mod and terms else s


@dataclass(frozen=True)
class Part:
    value: str
    lag: Expr = Expr()
    pieces: tuple | None = None  # (lo, hi), hi included; None: all
    heads: tuple | None = None


@dataclass(frozen=True)
class Guard:
    ends: tuple = ()  # (axis, lo, hi), None: open, cyclic where lo > hi; axis -1 is the rank
    spans: tuple = ()  # table: first and last step of each rank
    ranks: tuple = ()  # table: the ranks of each step ...
    since: int = 0  # ... from this one on
    receiver: bool = False  # who receives, not who sends

    def at(self, t, xs):
        on = np.ones(len(xs), bool)
        for axis, lo, hi in self.ends:
            lo, hi, x = lo.at(t, xs) if lo else 0, hi.at(t, xs) if hi else 1 << 30, xs[:, axis]
            on &= np.where(lo <= hi, (lo <= x) & (x <= hi), (lo <= x) | (x <= hi))
        if self.spans:
            first, last = np.array(self.spans)[xs[:, -1]].T
            on &= (first <= t) & (t <= last)
        return on & np.isin(xs[:, -1], self.ranks[t - self.since]) if self.ranks else on

    @property
    def tabled(self):
        return bool(self.spans or self.ranks)


@dataclass(frozen=True)
class Stmt:
    op: str  # let gather deal back send attend
    first: int
    last: int
    every: int = 1  # with gaps: `width` steps of each `every`
    width: int = 1
    guard: Guard = Guard()
    name: str = ""
    tensors: tuple = ()
    parts: tuple = ()  # what is sent; the queries of an attend; deal: the value, the receiver's slice of it
    keys: tuple = ()
    kind: str = ""
    shift: tuple = ()  # per axis
    table: tuple = ()  # instead: the receiver of each rank, -1 for none
    axis: int = 0

    def on(self, t):
        return self.first <= t <= self.last and (t - self.first) % self.every < self.width


@dataclass(frozen=True)
class Program:
    mesh: tuple
    steps: int
    stmts: tuple

    @property
    def coords(self):
        """[ranks, axes + 1], the last column is the rank."""
        return coordinates(self.mesh)

    def sections(self):
        """(first, last, statements) of steps that some statement joins."""
        joined = {t for s in self.stmts for t in range(s.first + 1, s.last + 1)}
        cuts = [t for t in range(self.steps + 1) if t not in joined]
        return [(a, b - 1, [s for s in self.stmts if a <= s.first < b]) for a, b in zip(cuts, cuts[1:])]

    @property
    def cost(self):
        return cost(self.stmts) + 0.5 * len(self.sections())


def cost(stmts):
    """What a reader has to read: statements, tables, masks, bounds."""
    total = 0.0
    for s in stmts:
        ends = [e for p in s.parts + s.keys for pair in (p.pieces, p.heads) for e in pair or ()]
        total += 0.5 if s.op == "let" else 1
        total += 2 * (s.guard.tabled + bool(s.table)) + {"any": 1.0, "mask": 2.5}.get(s.kind, 0)
        total += 0.3 * sum(bool(e.t or any(e.x)) for e in ends) + 0.1 * len(s.guard.ends)
        total += 0.05 * sum(e is not None for g in s.guard.ends for e in g[1:])
        total += 0.01 * (s.op == "send" and s.guard.receiver == TENSORS[s.tensors[0]].accumulates)  # where it is attended
    return total


def coordinates(mesh):
    rank = np.arange(np.prod(mesh))
    return np.stack([*np.unravel_index(rank, mesh), rank], 1)


# ---- values: the blocks of each rank as a table [ranks, pieces, head slices]


def pack(ranks, side, rank, block):
    if not len(block):
        return np.full((ranks, 1, 1), -1)
    many = len(side.chunks)
    seen, at = np.unique(rank.astype(np.int64) * many + side.chunk[block], return_inverse=True)
    piece = at - np.searchsorted(seen // many, np.arange(ranks))[rank]
    low = np.full(ranks, 1 << 30)
    np.minimum.at(low, rank, side.slice[block])
    head = side.slice[block] - low[rank]
    table = np.full((ranks, piece.max() + 1, head.max() + 1), -1)
    table[rank, piece, head] = block
    return table


def own(ranks, side):
    return pack(ranks, side, side.homes.astype(np.intp), np.arange(len(side)))


def flat(rank, blocks):
    r, c = np.nonzero(blocks >= 0)
    return rank[r].astype(np.intp), blocks[r, c].astype(np.intp)


def triples(src, dst, blocks):
    """Messages as (src, dst, their blocks)."""
    return [(s, d, frozenset(row) - {-1}) for s, d, row in zip(src.tolist(), dst.tolist(), blocks.tolist())]


def within(table, ends):
    """Only the pieces and heads lo..hi of each rank, ends [ranks, 4]."""
    for axis in (1, 2):
        i = np.arange(table.shape[axis])
        on = (i >= ends[:, 2 * axis - 2, None]) & (i <= ends[:, 2 * axis - 1, None])
        table = np.where(on[:, :, None] if axis == 1 else on[:, None, :], table, -1)
    return table.reshape(len(table), table.shape[1] * table.shape[2])


# ---- fitting


def line(xs, n=0, t0=0, periods=()):
    """How many of the first values are affine in the step, perhaps mod n, and the Expr."""
    best, d = (0, Expr()), np.diff(xs)
    clocks = [(1, 0)] + [(p, s) for p in periods for s in range(p)] * bool(len(d) and (d != d[0]).any())
    for (period, phase), mod in [(clock, m) for clock in clocks for m in (0, n)]:
        on = np.diff((t0 + np.arange(len(xs)) - phase) // period)
        by = int(d[np.argmax(on)]) if on.any() else 0
        by = (by + mod // 2) % mod - mod // 2 if mod else by
        wrong = (d - by * on) % mod != 0 if mod else d != by * on
        many = 1 + (int(np.argmax(wrong)) if wrong.any() else len(d))
        if many > best[0]:
            c = int(xs[0]) - by * ((t0 - phase) // period)
            c = (c + mod // 2) % mod - mod // 2 if mod and by else c
            best = many, Expr(c, by, (), mod if by else 0, (), period if by else 1, phase if by else 0)
    return best


def plane(xs, t, values):
    """Exact integer fit over coordinates and step, else None."""
    columns = np.column_stack([xs[:, :-1], t])
    used = [i for i in range(columns.shape[1]) if (columns[:, i] != columns[0, i]).any()]
    a = np.column_stack([np.ones(len(t), int), columns[:, used]])
    k = np.rint(np.linalg.lstsq(a.astype(float), values, rcond=None)[0]).astype(int)
    if (a @ k != values).any():
        return None
    full = np.zeros(columns.shape[1], int)
    full[used] = k[1:]
    return Expr(int(k[0]), int(full[-1]), tuple(full[:-1].tolist()) if full[:-1].any() else ())


def interval(on):
    """(lo, hi) of a cyclic interval of coordinates, or None."""
    yes, no = np.flatnonzero(on), np.flatnonzero(~on)
    if yes[-1] - yes[0] + 1 == len(yes):
        return yes[0], yes[-1]
    return (no[-1] + 1, no[0] - 1) if no[-1] - no[0] + 1 == len(no) else None


def box(on, mesh):
    """[(axis, lo, hi)] of a set of ranks: coordinates, else ranks in a row, else None."""
    cube, axes = on.reshape(mesh), range(len(mesh))
    sides = [cube.any(tuple(j for j in axes if j != i)) for i in axes]
    ends = [interval(s) for s in sides]
    if (np.ix_(*sides) and cube[np.ix_(*sides)].all()) and all(ends):
        return [(i, *e) for i, e in zip(axes, ends)]
    return [(len(mesh), *e)] if (e := interval(on)) else None


def guards(sets, mesh, extra):
    """{step: bool [ranks]}, steps in a row -> [(first, last, Guard, fits of the extra sequences)]."""
    sizes, steps = (*mesh, int(np.prod(mesh))), sorted(sets)
    boxes, periods = [box(sets[t], mesh) for t in steps], mesh[1:]
    shapes = [b and [e[0] for e in b] for b in boxes]

    def piece(i, most):
        """The longest fit from there on: (how many steps, the guard, the extra fits)."""
        if boxes[i] is None:
            ranks = tuple(np.flatnonzero(sets[steps[i]]).tolist())
            return 1, Guard(ranks=(ranks,), since=steps[i]), [Expr(int(x[steps[i]])) for x, _ in extra]
        run = list(takewhile(lambda j: shapes[j] == shapes[i], range(i, min(i + most, len(steps)))))
        seqs = [(np.array([boxes[j][k][e] for j in run]), sizes[a]) for k, a in enumerate(shapes[i]) for e in (1, 2)]
        seqs += [(np.array([x[steps[j]] for j in run]), n) for x, n in extra]
        many = min(line(x, n, steps[i], periods)[0] for x, n in seqs)
        fits, ends = [line(x[:many], n, steps[i], periods)[1] for x, n in seqs], []
        for k, a in enumerate(shapes[i]):
            (lo, hi), cyclic = fits[2 * k : 2 * k + 2], (seqs[2 * k][0] > seqs[2 * k + 1][0])[:many].any()
            lo, hi = None if not cyclic and lo == Expr() else lo, None if not cyclic and hi == Expr(sizes[a] - 1) else hi
            ends += [(a if a < len(mesh) else -1, lo, hi)] if lo or hi else []
        return many, Guard(tuple(ends)), fits[2 * len(shapes[i]) :]

    def weight(found):
        return 1 + 2 * found[1].tabled + 0.1 * sum(e.t != 0 for g in found[1].ends for e in g[1:] if e)

    i, found = 0, []
    while i < len(steps):
        many, guard, fits = piece(i, len(steps))
        found.append((steps[i], steps[i + many - 1], guard, fits))
        i += many
    if len(found) > 1 and mesh[1:]:  # as few pieces as can be, but which are the simplest?
        best = {len(steps): (0, [])}
        for i in reversed(range(len(steps))):
            tries = [piece(i, most) for most in (1, 2, len(steps))]
            best[i] = min(((weight(x) + best[i + x[0]][0], [(steps[i], steps[i + x[0] - 1], *x[1:]), *best[i + x[0]][1]]) for x in tries), key=lambda y: y[0])
        found = best[0][1]
    if len(found) < 3:
        return found
    fits = [line(np.array([x[t] for t in steps]), n, steps[0]) for x, n in extra]
    if any(k < len(steps) for k, _ in fits):
        return found
    on = [np.flatnonzero(column) for column in np.array([sets[t] for t in steps]).T]
    if all(len(s) == 0 or s[-1] - s[0] + 1 == len(s) for s in on):  # one table, not many statements
        guard = Guard(spans=tuple((steps[s[0]], steps[s[-1]]) if len(s) else (1, 0) for s in on))
    else:
        guard = Guard(ranks=tuple(tuple(np.flatnonzero(sets[t]).tolist()) for t in steps), since=steps[0])
    return min([found, [(steps[0], steps[-1], guard, [e for _, e in fits])]], key=lambda x: sum(1 + 2 * g.tabled for _, _, g, _ in x))


def runs(steps):
    for _, group in groupby(enumerate(sorted(steps)), lambda p: p[1] - p[0]):
        yield [t for _, t in group]


def find_mesh(rows, ranks):
    """The factorisation in which messages are the fewest shifts, along single axes."""

    def ways(n, depth):
        return [(n,)] + [(f, *w) for f in range(2, n) if n % f == 0 and depth > 1 for w in ways(n // f, depth - 1)]

    distinct = {p.tobytes(): p for moves, _ in rows for s, d, _ in moves.values() for p in [np.unique(s * ranks + d)]}

    def price(mesh):
        total = 0
        for p in distinct.values():
            src, dst = (np.stack(np.unravel_index(x, mesh), 1) for x in divmod(p, ranks))
            total += (1 + (np.count_nonzero(np.unique((dst - src) % mesh, axis=0), axis=1) > 1)).sum()
        return total, len(mesh)

    return min(ways(ranks, 4), key=price)


def kinds_of(plan, q, kv, seen):
    """full, causal (key <= query by index), strict (<), end (aligned at the last) or other."""
    known, work, sides = tiles(plan), plan.workload, plan.partition
    q3, kv3 = q[:, :, None], kv[:, None, :]
    size = sides.q.sizes[q3] * sides.kv.sizes[kv3]
    there = (q3 >= 0) & (kv3 >= 0)
    every = np.where(there, known.areas[sides.q.chunk[q3], sides.kv.chunk[kv3]] == size, True)
    found = np.where(every.all((1, 2)), "full", "other").astype("U8")
    for i in np.flatnonzero(found == "other"):
        key = tuple(tuple(np.unique(s.chunk[x[x >= 0]]).tolist()) for s, x in ((sides.q, q[i]), (sides.kv, kv[i])))
        if key not in seen:
            rows, cols = (np.sort(np.concatenate([p for c in k for p in s.chunks[c]])) for k, s in zip(key, (sides.q, sides.kv)))
            m = work.mask.allowed(rows + work.offset, cols)
            like = {k: (m == np.tri(*m.shape, k=k, dtype=bool)).all() for k in (0, -1, m.shape[1] - m.shape[0])}
            seen[key] = "causal" if like[0] else "strict" if like[-1] else "end" if any(like.values()) else "other"
        found[i] = seen[key]
    return found


# ---- recovery


@dataclass
class Value:
    name: str
    born: int | None  # first step in which it can be read; None: it stays (own, gathered, dealt)
    side: str
    table: np.ndarray


@dataclass
class Record:
    """Rows of one step that are alike but for rank and slices."""

    t: int
    key: tuple
    rank: np.ndarray
    refs: list  # per part (role, value number)
    raw: np.ndarray  # [n, 4 x parts]: lo, hi of pieces, lo, hi of heads
    whole: np.ndarray  # [n, 2 x parts]
    kinds: np.ndarray
    delta: np.ndarray | None = None  # coordinates of receiver - sender; all -1: each rank its own
    dst: np.ndarray | None = None


class Reading:
    """One walk over the rows: where each copy came from, then names, then the fewest statements."""

    def __init__(self, plan, rows, chained):
        self.plan, self.rows, self.ranks, self.chained, self.relayed = plan, rows, plan.ranks, chained, False
        self.mesh = find_mesh(rows, plan.ranks)
        self.xs = coordinates(self.mesh)
        self.values, self.records, self.exchanges, self.transfers, self.sent, self.known = [], [], [], [], [], {}
        self.side = {s: plan.partition.side(s) for s in ("q", "kv")} | {t: plan.side(t) for t in ADDS[plan.pass_]}
        self.place = {s: np.full((3, self.ranks, len(b)), -1) for s, b in self.side.items()}  # value, piece, head
        for s in ("q", "kv"):
            self.arrive(OWN, None, s, own(self.ranks, self.side[s]))
        for t, (moves, attends) in enumerate(rows):
            self.step(t, moves, attends)

    def arrive(self, name, born, side, table):
        self.values.append(Value(name, born, side, table))
        self.put(side, len(self.values) - 1)
        for i, v in enumerate(self.values[:-1] if born is None else ()):  # of the values that stay, the last one has a block
            if v.born is None and v.side == side:
                rank, block = flat(np.arange(self.ranks), v.table.reshape(self.ranks, -1))
                left = self.place[side][0][rank, block] == i
                v.table = pack(self.ranks, self.side[side], rank[left], block[left])
                self.put(side, i)

    def put(self, side, i):
        r, p, h = np.nonzero(self.values[i].table >= 0)
        self.place[side][:, r, self.values[i].table[r, p, h]] = np.stack([np.full(len(r), i), p, h])

    def step(self, t, moves, attends):
        coming, gone = [], []
        for tensors, (src, dst, blocks) in moves.items():
            sums, side = TENSORS[tensors[0]].accumulates, TENSORS[tensors[0]].side
            tag, role = (tensors[0], ("sum", *tensors)) if sums else (side, ("send", *tensors))
            delta = (self.xs[dst] - self.xs[src])[:, :-1] % self.mesh
            while len(src) and (hit := self.exchange(t, tensors, src, dst, blocks, delta)):
                made, on, table = hit
                self.exchanges.append(made)
                if table is not None:
                    coming.append((made["name"], None, side, table))
                src, dst, blocks, delta = (x[~on] for x in (src, dst, blocks, delta))
            if sums:
                gone.append((tag, *flat(src, blocks)))
            used, many = set(), len(src)
            if len(np.unique(delta, axis=0)) > 2 and len(np.unique(src)) == len(np.unique(dst)) == many:
                delta[:] = -1
            for way in np.unique(delta, axis=0):
                at = np.flatnonzero((delta == way).all(1))
                found = sorted(self.sources(tensors[0], src[at], blocks[at]), key=lambda x: -len(x[0]))
                name = self.transfer(t, tensors, way, {self.values[v].name for x in found for v in x[1]}, used)
                for sub, values, raw, whole in found:
                    refs, kinds = [(role, v) for v in values], np.full(len(sub), "", "U8")
                    self.records.append(Record(t, ("send", name, tensors), src[at[sub]], refs, raw, whole, kinds, way, dst[at[sub]]))
                coming.append((name, t + 1, tag, pack(self.ranks, self.side[tag], *flat(dst[at], blocks[at]))))
        if attends:
            rank, q, kv = attends
            kinds = kinds_of(self.plan, q, kv, self.known)
            for at, asking, *ends in self.refs("q", rank, q):
                for sub, asked, *more in self.refs("kv", rank[at], kv[at]):
                    refs = [(("q",), v) for v in asking] + [(("kv",), v) for v in asked]
                    both = [np.hstack([a[sub], b]) for a, b in zip(ends, more)]
                    self.records.append(Record(t, ("attend", len(asking)), rank[at[sub]], refs, *both, kinds[at[sub]]))
        for tag, rank, block in gone:
            self.place[tag][:, rank, block] = -1
        for each in coming:
            self.arrive(*each)

    def refs(self, side, rank, blocks):
        """Rows by the values they read: [(rows, (value, ...), raw, whole)]."""
        there = blocks >= 0
        v, p, h = (np.where(there, x[rank[:, None], blocks], -1) for x in self.place[side])
        if (v[there] < 0).any():
            raise PlanError(f"a {side} block is read where no value is known")
        groups = defaultdict(list)
        single = v.max(1) == np.where(there, v, 1 << 30).min(1)
        for i, (one, value) in enumerate(zip(single.tolist(), v.max(1).tolist())):
            groups[(value,) if one else tuple(np.unique(v[i][there[i]]).tolist())].append(i)
        found = []
        for key, at in groups.items():
            at, raw, whole = np.array(at), [], []
            for value in key:
                mine, table, many = (v[at] == value) & there[at], self.values[value].table[rank[at]] >= 0, 1
                for x, n in ((p[at], table.any(2).sum(1)), (h[at], table.any(1).sum(1))):
                    lo, hi = np.where(mine, x, 1 << 30).min(1), np.where(mine, x, -1).max(1)
                    raw, whole, many = [*raw, lo, hi], [*whole, (lo == 0) & (hi == n - 1)], many * (hi - lo + 1)
                if (mine.sum(1) != many).any():
                    raise PlanError(f"{side} blocks of {self.values[value].name} are no slice")
            found.append((at, key, np.stack(raw, 1), np.stack(whole, 1)))
        return found

    def sources(self, tensor, rank, blocks):
        """The same for messages: sums by what they are sums for, or by what brought them."""
        side, there = TENSORS[tensor].side, blocks >= 0
        if not TENSORS[tensor].accumulates:
            return self.refs(side, rank, blocks)
        inputs, brought = ((self.place[k][0][rank[:, None], blocks] >= 0) | ~there for k in (side, tensor))
        self.relayed |= bool(brought.all(1).any())
        by, found = brought.all(1) if self.chained else ~inputs.all(1), []
        for tag, at in ((tensor, np.flatnonzero(by)), (side, np.flatnonzero(~by))):
            found += [(at[i], *rest) for i, *rest in (self.refs(tag, rank[at], blocks[at]) if len(at) else ())]
        return found

    def exchange(self, t, tensors, src, dst, blocks, delta):
        """A complete exchange along an axis: (statement, its rows, what each rank then has) or None."""
        sums, side = TENSORS[tensors[0]].accumulates, TENSORS[tensors[0]].side
        if sums and self.sent:
            rows = {row: i for i, row in enumerate(triples(dst, src, blocks))}
            for name, tag, axis, messages in reversed(self.sent):
                if tag == side and all(m in rows for m in messages):
                    on = np.isin(np.arange(len(src)), [rows[m] for m in messages])
                    return dict(op="back", first=t, last=t, tensors=tensors, axis=axis, parts=(name,)), on, None
        for axis, n in enumerate(self.mesh if not sums else ()):
            on = (np.count_nonzero(delta, axis=1) == 1) & (delta[:, axis] > 0)
            if on.sum() != self.ranks * (n - 1) or len(np.unique(src[on] * self.ranks + dst[on])) < on.sum():
                continue
            s, d, b = src[on], dst[on], blocks[on]
            rank, block = flat(d, b)
            values = np.unique(self.place[side][0][flat(s, b)])
            if len(values) > 1 or values[0] < 0:
                continue
            value, made = self.values[values[0]], dict(first=t, last=t, tensors=tensors, axis=axis, parts=(values[0],))
            if not self.joint(t, side, values[0], rank, block, delta[on, axis][np.nonzero(b >= 0)[0]]):
                continue
            at, _, raw, whole = self.refs(side, s, b)[0]
            sent = triples(s, d, b)
            made["name"], keep = f"G{len(self.sent)}", value.table.reshape(self.ranks, -1)
            if not whole.all():
                slots = [raw[self.xs[d[at], axis] == x] for x in range(n)]
                if any((x != x[0]).any() for x in slots):
                    continue
                slots = np.stack([x[0] for x in slots])
                keep, unit = within(value.table, slots[self.xs[:, axis]]), tuple(int(i == axis) for i in range(len(self.mesh)))
                fits = [line(slots[:, i]) for i in range(4)]
                fits = [replace(e, t=0, x=tuple(e.t * u for u in unit)) if k == n else Expr(0, 0, unit, 0, tuple(slots[:, i].tolist())) for i, (k, e) in enumerate(fits)]
                made["parts"] += (Part("to", Expr(), *(None if whole[:, i].all() else tuple(fits[2 * i : 2 * i + 2]) for i in (0, 1))),)
            self.sent.append((made["name"], side, axis, sent))
            mine = flat(np.arange(self.ranks), keep)
            table = pack(self.ranks, self.side[side], *(np.concatenate(x) for x in zip(mine, (rank, block))))
            return dict(op="gather" if whole.all() else "deal", **made), on, table
        return None

    def joint(self, t, side, value, rank, block, origin):
        """Whether a later attend reads as one what came from several origins."""
        table = np.where(self.place[side][0] == value, 0, -1)
        table[rank, block] = origin
        for _, attends in self.rows[t + 1 :]:
            if attends:
                blocks = attends[1 if side == "q" else 2]
                seen = np.where(blocks >= 0, table[attends[0][:, None], blocks], -1)
                if ((seen.max(1) > 0) & (np.where(seen >= 0, seen, 1 << 30).min(1) < seen.max(1))).any():
                    return True
        return False

    def transfer(self, t, tensors, delta, sources, used):
        """The name of the transfer that goes on with this shift and these sources, or a new one."""

        def score(x):
            next_, chain, plain = t == x["last"] + 1, x["name"] in sources, bool(sources & x["from"])
            if (delta == x["delta"]).all():
                return 0 if chain else 2 if next_ else 3
            if ((delta > 0) != (x["delta"] > 0)).any():
                return 9  # another axis
            if x["by"] is not None:
                return 1 if next_ and plain and (delta == (x["delta"] + x["by"]) % self.mesh).all() else 9
            return 4 if next_ and (chain or plain) else 9

        open_ = [x for x in self.transfers if x["tensors"] == tensors and x["name"] not in used]
        best = min(open_, key=score, default=None)
        if best is None or score(best) == 9:
            n = len(self.transfers)
            best = dict(name="ABCDEFHIJKLMNOPQRSTUVWXYZ"[n] if n < 25 else f"A{n}", tensors=tensors, by=None)
            self.transfers.append(best)
        elif t == best["last"] + 1:
            best["by"] = (delta - best["delta"]) % self.mesh
        best.update({"delta": delta, "last": t, "from": sources})
        used.add(best["name"])
        return best["name"]

    # -- names

    def naming(self, loose):
        """Values become (name, lag); what a chain of sends starts from takes the chain's name."""
        lags, sends, starts, lets = defaultdict(set), defaultdict(list), defaultdict(list), []
        for r in self.records:
            for role, v in r.refs:
                if self.values[v].born is not None:
                    lags[role].add((self.values[v].name, r.t - self.values[v].born))
            if r.key[0] == "send" and len(r.refs) == 1:
                sends[r.key[1]].append(r)
        born = {(v.name, v.born) for v in self.values}
        for name, records in sends.items():
            chain = any((self.values[r.refs[0][1]].name, self.values[r.refs[0][1]].born) == (name, r.t) for r in records)
            for r in records if chain or (loose and not TENSORS[records[0].key[2][0]].accumulates) else ():
                if (name, r.t) not in born and (r.whole.all() or (r.raw == r.raw[0]).all()):
                    v, cut = r.refs[0][1], None if r.whole.all() else r.raw[0]
                    starts[v, r.t].append((name, cut))
                    ends = [None if r.whole[:, i].all() else tuple(Expr(int(e)) for e in cut[2 * i : 2 * i + 2]) for i in (0, 1)]
                    lag = 0 if self.values[v].born is None else r.t - self.values[v].born
                    lets.append(Stmt("let", r.t, r.t, name=name, tensors=r.key[2], parts=(Part(self.values[v].name, Expr(lag), *ends),)))

        def named(r, i):
            role, v = r.refs[i]
            raw, whole = r.raw[:, 4 * i : 4 * i + 4], r.whole[:, 2 * i : 2 * i + 2]
            for name, lag in sorted({*lags[role], (r.key[1], 0)} if r.key[0] == "send" else lags[role]):
                for chain, cut in starts[v, r.t - lag] if (v, r.t - lag) in starts else ():
                    if chain == name and cut is None:
                        return (name, lag), raw, whole
                    if chain == name and (raw >= cut[[0, 0, 2, 2]]).all() and (raw <= cut[[1, 1, 3, 3]]).all():
                        raw = raw - cut[[0, 0, 2, 2]]
                        return (name, lag), raw, (raw[:, ::2] == 0) & (raw[:, 1::2] == (cut[1::2] - cut[::2]))
            value = self.values[v]
            return (value.name, 0 if value.born is None else r.t - value.born), raw, whole

        table = defaultdict(list)
        for r in self.records:
            parts = [named(r, i) for i in range(len(r.refs))]
            table[r.key, tuple(p[0][0] for p in parts), tuple(p[0][1] for p in parts)].append((r, *(np.hstack([p[i] for p in parts]) for i in (1, 2))))
        return self.sliding(table), lets

    def sliding(self, table):
        """Lags that are affine in the step: values read in another order than they came."""
        bare = defaultdict(list)
        for (key, names, lags), items in table.items():
            bare[key, names] += [(items[0][0].t, lags, items)] if len({r.t for r, *_ in items}) == 1 else []
        found = {(k, n, tuple(map(Expr, lags))): items for (k, n, lags), items in table.items()}
        for (key, names), each in bare.items():
            each = {t: (lags, items) for t, lags, items in each}
            for run in runs(each):
                lags = np.array([each[t][0] for t in run])
                if len(run) > 2 and all(line(x)[0] == len(run) for x in lags.T) and (lags[0] != lags[1]).any():
                    for t in run:
                        del found[key, names, tuple(map(Expr, each[t][0]))]
                    found[key, names, tuple(line(x, 0, run[0])[1] for x in lags.T)] = [x for t in run for x in each[t][1]]
        return found

    # -- statements

    def statements(self, key, names, lags, items):
        """Rows of many steps that read the same names -> the fewest statements."""
        t = np.concatenate([np.full(len(r.rank), r.t) for r, *_ in items])
        rank, kind = (np.concatenate([getattr(r, f) for r, *_ in items]) for f in ("rank", "kinds"))
        raw, whole = (np.concatenate([x[i] for x in items]) for i in (1, 2))
        flagged, deltas = raw.copy(), {r.t: r.delta for r, *_ in items}
        flagged[:, 1::2][whole] = -1
        dst = np.concatenate([r.dst for r, *_ in items]) if key[0] == "send" else rank

        def build(label, ends_of, receiver=False):
            code, found = np.zeros(len(label), np.int64), []
            for column in (label - label.min(0)).T:
                code = code * (int(column.max()) + 1) + column
            inverse = np.unique(code, return_inverse=True)[1]
            for number in range(inverse.max() + 1):
                at = np.flatnonzero(inverse == number)
                for run in runs({*t[at].tolist()}):
                    mine = at[(t[at] >= run[0]) & (t[at] <= run[-1])]
                    ends, who = ends_of(mine), dst[mine] if receiver else rank[mine]
                    if ends is None:
                        return None
                    on = np.zeros((len(run), self.ranks), bool)
                    on[t[mine] - run[0], who] = True
                    if on.sum() < len(mine):
                        return None  # two rows of a rank in a step: labels have to tell them apart
                    sets = dict(zip(run, on))
                    extra = [({s: deltas[s][a] for s in run}, n) for a, n in enumerate(self.mesh)] if key[0] == "send" else []
                    parts = tuple(Part(n, lag, *ends[2 * i : 2 * i + 2]) for i, (n, lag) in enumerate(zip(names, lags)))
                    kinds = {*kind[mine].tolist()}
                    for a, b, guard, shift in guards(sets, self.mesh, extra):
                        made = Stmt(key[0], a, b, guard=replace(guard, receiver=receiver and guard != Guard()), parts=parts)
                        if key[0] == "send" and deltas[a][0] < 0:
                            table, rows = np.full(self.ranks, -1), mine[(t[mine] >= a) & (t[mine] <= b)]
                            table[rank[rows]] = dst[rows]
                            if (table[rank[rows]] != dst[rows]).any():
                                return None
                            found.append(replace(made, name=key[1], tensors=key[2], table=tuple(table.tolist())))
                        elif key[0] == "send":
                            shift = tuple(replace(e, c=(e.c + (n - 1) // 2) % n - (n - 1) // 2) for e, n in zip(shift, self.mesh))
                            found.append(replace(made, name=key[1], tensors=key[2], shift=shift))
                        else:
                            cut, name = key[1], min(kinds) if len(kinds) == 1 else "other" if kinds == {"end", "other"} else "any" if "other" in kinds else "mask"
                            found.append(replace(made, parts=parts[:cut], keys=parts[cut:], kind=name))
            return found

        def constant(at):
            row = flagged[at[0]].reshape(-1, 2).tolist()
            same = (flagged[at] == flagged[at[0]]).all()
            return [None if pair == [0, -1] else tuple(map(Expr, pair)) for pair in row] if same else None

        def affine(at):
            ends = [None if whole[at, i // 2].all() else tuple(plane(self.xs[rank[at]], t[at], raw[at, j]) for j in (i, i + 1)) for i in range(0, raw.shape[1], 2)]
            return None if any(e and None in e for e in ends) else ends

        kinds = np.unique(kind, return_inverse=True)[1].reshape(-1, 1)
        weak = np.unique(np.where(kind == "end", "other", kind), return_inverse=True)[1].reshape(-1, 1)
        labels = [(np.hstack([kinds, flagged]), constant), (kinds, affine)]
        labels += [(np.hstack([weak, flagged]), constant), (weak, affine), (flagged, constant), (kinds * 0, affine)]
        best, labels = None, labels[:2] + [(t[:, None], constant)] if key[0] == "send" else labels
        for receiver in (False, True)[: 1 + (key[0] == "send")]:
            for label, ends_of in labels:
                if best is None or cost(best) > 1:
                    found = build(label, ends_of, receiver)
                    best = found if best is None or (found and cost(found) < cost(best)) else best
        return best

    def program(self, loose):
        table, stmts = self.naming(loose)
        for made in self.exchanges:
            value, *rest = made["parts"]
            lag = 0 if made["op"] == "back" or self.values[value].born is None else made["first"] - self.values[value].born
            name = value if made["op"] == "back" else self.values[value].name
            stmts.append(Stmt(**made | {"parts": (Part(name, Expr(lag)), *rest)}))
        for key, items in table.items():
            stmts += self.statements(*key, items)
        order = ("let", "gather", "deal", "back", "send", "attend")
        stmts = sorted(folded(stmts), key=lambda s: (order.index(s.op), s.first, s.name))
        return Program(self.mesh, len(self.rows), tuple(stmts))


def folded(stmts):
    """The same statement again and again, at equal distances  -->  one with gaps."""
    alike = defaultdict(list)
    for s in stmts:
        varies = [e.t for g in s.guard.ends for e in g[1:] if e] + [e.t for e in s.shift] + [e.t for p in s.parts + s.keys for e in (p.lag, *(p.pieces or ()), *(p.heads or ()))]
        alike[replace(s, first=s.last - s.first, last=0) if not any(varies) and not s.guard.tabled else s].append(s)
    for group in alike.values():
        group.sort(key=lambda s: s.first)
        gaps = {b.first - a.first for a, b in zip(group, group[1:])}
        if len(gaps) == 1:
            a, b = group[0], group[-1]
            group = [replace(a, last=b.last, every=gaps.pop(), width=a.last - a.first + 1)]
        yield from group


def recover(plan, rows):
    """The shortest of a few readings of the same rows."""
    found, reading, failed = [], None, None
    for chained in (False, True):
        if chained and reading and not reading.relayed:
            break  # nothing to name otherwise
        try:
            reading = Reading(plan, rows, chained)
            found += [reading.program(loose) for loose in (False, True)]
        except PlanError as error:
            failed = error
    if not found:
        raise failed
    return min(found, key=lambda p: p.cost)


