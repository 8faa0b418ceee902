"""explore(...)   yields the candidates of a search, seeds first, scored or pruned.

seeds      named by the caller
layouts    pieces of several grains, with rows grouped or whole
movement   for the best layouts: head slices, own keys first
offload    for the best layouts whose busiest rank computes far more than the average
copies     for backward passes: copies that the forward pass leaves in place

The order depends on scores and counts only, never on a clock. A candidate is not scored if its
work, calls and keys alone take longer than the best plan so far.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.errors import PlanError
from ringloom.planner.ir import Pass, Plan
from ringloom.planner.layouts import Chunks, canonical_layout, owners_of_tokens, sides
from ringloom.planner.passes.edges import shares_keys
from ringloom.planner.planning import find_schedule
from ringloom.planner.search.building import build, found_parts
from ringloom.planner.search.parts import Parts
from ringloom.planner.search.prices import Prices, Score
from ringloom.planner.search.recipe import ROW_WAYS, Found, Recipe
from ringloom.planner.workload import Workload, check_request

BUDGET = 72  # candidates of found plans
UNEVEN = 1.08  # busiest rank / average above which offloads are tried
BEST = 3  # number of layouts whose movement is varied
SLICES = ((1,), (2,), (4,), (1, 3, 4), (1, 1, 2, 4))
KEEPS = (("Q", "KV", "OUT"), ("KV",), ("Q", "OUT"), ())
SHORTEST = 128  # tokens of a piece: a tile of common kernels


@dataclass(frozen=True, eq=False)
class Tried:
    """A candidate with its plan and score, or the reason why it has none."""

    recipe: Recipe
    family: str
    plan: Plan | None = None
    score: Score | None = None
    refused: str | None = None
    pruned: bool = False


def explore(
    work: Workload,
    ranks: int,
    pass_: Pass,
    prices: Prices,
    score: Callable[[Plan], Score],
    *,
    seeds: Sequence[Recipe],
    pair: float | None = None,
    floor: Callable[[Plan, float], float] = lambda *_: 0.0,
    budget: int = BUDGET,
    layout: str | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Tried]:
    """Tries seeds, then found plans, and yields each candidate as soon as it has been tried.

    `prices` are those of the forward pass, which determine the layout of both passes; `pair`: the
    seconds of a pair in this pass, by default as in `prices`. `budget` limits found candidates, not
    seeds. `layout` fixes the owners of tokens for all candidates. `score` raises PlanError for a
    plan that does not fit. `floor(plan, limit)` returns a lower bound in seconds for plans with the
    same attends, and may stop once it reaches `limit`, the best score: such a plan is not scored.
    `stop` is called before each candidate.
    """
    check_request(work, ranks, "explore(work, ranks, ...)")
    where = layout and canonical_layout(layout)
    search = _Search(work, ranks, pass_, prices, pair or prices.pair, score, floor, where)
    for recipe in dict.fromkeys(search.seed(recipe) for recipe in seeds):
        if stop():
            return
        yield search.tried(recipe)
    for recipe in search.candidates():
        if recipe.schedule in search.known:
            continue
        if stop() or budget < 1:
            return
        budget -= isinstance(recipe.schedule, Found)
        yield search.tried(recipe)


class _Search:
    """The candidates tried so far, and the next ones that follow from them."""

    def __init__(
        self,
        work: Workload,
        ranks: int,
        pass_: Pass,
        prices: Prices,
        pair: float,
        score: Callable[[Plan], Score],
        floor: Callable[[Plan, float], float],
        layout: str | None,
    ) -> None:
        self.work, self.ranks, self.pass_, self.prices = work, ranks, pass_, prices
        self.pair, self.score, self.floor, self.layout = pair, score, floor, layout
        self.owners = None if layout is None else _owners(sides(work, ranks, layout), work)
        self.best = float("inf")
        self.known = dict[Found, Tried]()
        self.seeds = list[tuple[Tried, float]]()  # with seconds, or floors of pruned seeds
        self.least = dict[Found | str, float]()  # estimates, and floors of named schedules
        self.relay = prices.nodes(ranks) % ranks

    def seed(self, recipe: Recipe) -> Recipe:
        """Returns a seed with the fixed layout, if its schedule accepts one."""
        if self.layout is None or not isinstance(recipe.schedule, str):
            return recipe
        schedule, given = find_schedule(recipe.schedule)
        if "layout" not in schedule.parameters:
            return recipe
        given["layout"] = self.layout
        text = "".join(f":{key}={value}" for key, value in given.items())
        return replace(recipe, schedule=f"{schedule.name}{text}")

    def tried(self, recipe: Recipe) -> Tried:
        """Tries one candidate, and records its outcome for the next ones."""
        tried, way = self.outcome(recipe), recipe.schedule
        if tried.score:
            self.best = min(self.best, tried.score.seconds)
        if isinstance(way, Found):
            self.known[way] = tried
        elif not recipe.by_rows and not tried.refused:
            took = tried.score.seconds if tried.score else self.least[way]
            self.seeds.append((tried, took))
        return tried

    def outcome(self, recipe: Recipe) -> Tried:
        """Builds and scores one candidate unless it cannot beat the best."""
        way, tried = recipe.schedule, Tried(recipe, recipe.family)
        try:
            if isinstance(way, Found):
                parts = found_parts(way, self.work, self.ranks, self.prices)
                self.least[way] = estimate(parts, self.prices, self.pair)
            if not recipe.by_rows and self.least.get(way, 0.0) >= self.best:
                return replace(tried, pruned=True)
            made = build(recipe, self.work, self.ranks, self.pass_, self.prices)
            self.check_owners(made)
            least = self.floor(made, self.best)
            if not recipe.by_rows:
                self.least[way] = max(least, self.least.get(way, 0.0))
            if least >= self.best:
                return replace(tried, pruned=True)
            return replace(tried, plan=made, score=self.score(made))
        except PlanError as error:
            return replace(tried, refused=str(error))

    def check_owners(self, plan: Plan) -> None:
        """Raises PlanError if a layout is fixed and the plan has another one."""
        if self.owners is None:
            return
        for side, owner in zip((plan.partition.q, plan.partition.kv), self.owners, strict=True):
            own_ones = owners_of_tokens(((b.positions, b.home) for b in side.blocks), len(owner))
            if not np.array_equal(own_ones, owner):
                raise PlanError(f"its layout of tokens is not {self.layout}")

    def candidates(self) -> Iterator[Recipe]:
        """Yields found recipes; later ones depend on the outcomes of earlier ones."""
        yield from self.grouped()
        for way in self.layouts():
            yield Recipe(way)
        for vary in (self.firsts, self.slices, self.firsts):
            for way in self.fastest():
                for varied in vary(way):
                    yield Recipe(varied)
        for way in self.nearest()[:BEST]:
            for varied in self.offloads(way):
                yield Recipe(varied)
        if self.pass_ == "backward":
            for way in self.ranked()[:5]:
                yield from backwards(Recipe(way))

    def grouped(self) -> Iterator[Recipe]:
        """Yields the best seed of each schedule and layout with grouped rows.

        Pruned seeds are tried only if grouping usually matters: if rows on both sides of an edge of
        the mask see the same keys.
        """
        best, pruned = dict[tuple[str, object], Recipe](), shares_keys(self.work)
        for tried, _ in sorted(self.seeds, key=lambda seed: seed[1]):
            layout = find_schedule(str(tried.recipe.schedule))[1].get("layout")
            if tried.score or pruned:
                best.setdefault((tried.family, layout), tried.recipe)
        if self.work.mask.fixed_length:
            yield from (replace(recipe, by_rows=True) for recipe in best.values())

    def layouts(self) -> Iterator[Found]:
        """Yields layouts of several grains, by tokens and by work, with the ways to group rows."""
        names = [(self.layout, 0)] if self.layout else [("contiguous", 0), ("zigzag", 0)]
        if not self.layout:
            share = -(-self.work.seq // self.ranks)
            grains = [g for n in (1, 2, 4, 8) if (g := share // n) >= min(SHORTEST, share)]
            names += [("pieces", g) for g in grains if g]
            names += [("work", percent) for percent in (100, 50, 25)]
        keep = KEEPS[0] if self.pass_ == "backward" else None
        for layout, grain in names:
            for rows in ROW_WAYS[1:]:
                yield Found(layout or "", grain, rows, (1,), self.relay, own=2, keep=keep)

    def firsts(self, way: Found) -> Iterator[Found]:
        """Yields other choices of attends that overlap the first keys, and no relays."""
        for own in (0, 1, 2):
            yield replace(way, own=own)
        if way.relay:
            yield replace(way, relay=0)

    def slices(self, way: Found) -> Iterator[Found]:
        """Yields variants with other head slices."""
        heads = self.work.kv_heads
        for counts in SLICES:
            if counts[0] <= heads if len(counts) == 1 else sum(counts) == heads:
                yield replace(way, slices=counts)

    def fastest(self) -> list[Found]:
        """Returns the fastest variant of each of the best layouts."""
        best = dict[tuple[str, int, str], Found]()
        for way in self.ranked():
            best.setdefault((way.layout, way.grain, way.rows), way)
        return [*best.values()][:BEST]

    def offloads(self, way: Found) -> Iterator[Found]:
        """Yields offloads of several grains if ranks are not evenly busy."""
        score = self.known[way].score
        if score and max(score.busy) < UNEVEN * np.mean(score.busy):
            return
        share = -(-self.work.seq // self.ranks)
        least = min(SHORTEST, max(1, share // 8))
        for n in (4, 8, 16):
            for counts in ((2,), (4,)):
                yield replace(way, offload=max(least, share // n), slices=counts)

    def nearest(self) -> list[Found]:
        """Returns the found recipes, fastest first; pruned ones rank by their estimates."""
        times = {
            f: t.score.seconds if t.score else self.least.get(f) for f, t in self.known.items()
        }
        placed = [(time, n, f) for n, (f, time) in enumerate(times.items()) if time is not None]
        return [way for *_, way in sorted(placed, key=lambda s: s[:2])]

    def ranked(self) -> list[Found]:
        """Returns the scored recipes, fastest first."""
        scored = [(t.score.seconds, n, f) for n, (f, t) in enumerate(self.known.items()) if t.score]
        return [way for *_, way in sorted(scored, key=lambda s: s[:2])]


def backwards(recipe: Recipe) -> Iterator[Recipe]:
    """Yields the backward recipes of a forward recipe; found ones vary the copies that are kept."""
    if isinstance(recipe.schedule, str):
        yield recipe
    else:
        for keep in KEEPS:
            yield replace(recipe, schedule=replace(recipe.schedule, keep=keep))


def estimate(parts: Parts, prices: Prices, pair: float) -> float:
    """Returns a lower bound in seconds for plans of these parts, from work and keys."""
    speeds, users = prices.speed(parts.ranks), parts.users
    pairs = np.bincount(parts.runs_on, parts.pairs, parts.ranks)
    work = pairs * pair * parts.work.heads / speeds
    own = np.zeros_like(users)
    own[np.arange(len(own)), parts.kv_home] = True
    come = (users & ~own).T @ parts.tokens * prices.near
    return float(max(work.max(), come.max()))


def _owners(both: tuple[Chunks, Chunks], work: Workload) -> list[NDArray[np.int32]]:
    tokens = work.seq, work.kv_seq
    return [owners_of_tokens(chunks, n) for chunks, n in zip(both, tokens, strict=True)]
