"""explore(...)   yields the candidates of a search, seeds first, scored or pruned.

seeds      recipes of the caller
layouts    pieces of several grains, with groupings of rows
movement   for the best layouts: head slices, own keys first
offload    for the best layouts with uneven work: queries that run on other ranks
copies     for backward passes: copies that the forward pass leaves in place

The order depends only on scores and counts, never on a clock. The search does not score a candidate
if its work, calls and keys alone take longer than the best plan so far.
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
from ringloom.planner.search.recipe import ROW_GROUPINGS, FoundRecipe, Recipe
from ringloom.planner.workload import Workload, check_request

BUDGET = 72  # candidates of found plans
UNEVEN_LOAD = 1.08  # busiest rank / average; above, the search tries offloads
BEST_LAYOUTS = 3  # layouts for which the search varies the movement of keys
SLICE_CHOICES = ((1,), (2,), (4,), (1, 3, 4), (1, 1, 2, 4))
KEEP_CHOICES = (("Q", "KV", "OUT"), ("KV",), ("Q", "OUT"), ())
SHORTEST_PIECE = 128  # tokens of a piece: a tile of common kernels


@dataclass(frozen=True, eq=False)
class Candidate:
    """A candidate with its plan and score, or with the reason for their absence."""

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
) -> Iterator[Candidate]:
    """Tries seeds, then found plans, and yields each candidate after trying it.

    `prices` are the prices of the forward pass, which determine the layout of the two passes;
    `pair` is the seconds of a pair in this pass, by default as in `prices`. `budget` limits found
    candidates, not seeds. `layout` fixes the owners of tokens for all candidates. `score` raises
    PlanError for a plan that does not fit. `floor(plan, limit)` returns a lower bound in seconds
    for plans with the same attends, and may stop at `limit`, the best score, since the search does
    not score such a plan. The search calls `stop` before each candidate.
    """
    check_request(work, ranks, "explore(work, ranks, ...)")
    fixed_layout = layout and canonical_layout(layout)
    search = _Search(work, ranks, pass_, prices, pair or prices.pair, score, floor, fixed_layout)
    for recipe in dict.fromkeys(search.with_layout(recipe) for recipe in seeds):
        if stop():
            return
        yield search.try_recipe(recipe)
    for recipe in search.candidates():
        if recipe.schedule in search.tried:
            continue
        if stop() or budget < 1:
            return
        budget -= isinstance(recipe.schedule, FoundRecipe)
        yield search.try_recipe(recipe)


class _Search:
    """The candidates of a search so far, and the next candidates."""

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
        self.tried = dict[FoundRecipe, Candidate]()
        self.seeds = list[tuple[Candidate, float]]()  # with seconds, or floors of pruned seeds
        self.floors = dict[FoundRecipe | str, float]()  # estimates, and floors of named schedules
        self.relay = prices.ranks_per_node(ranks) % ranks

    def with_layout(self, recipe: Recipe) -> Recipe:
        """Returns a seed with the fixed layout, if its schedule has a layout parameter."""
        if self.layout is None or not isinstance(recipe.schedule, str):
            return recipe
        schedule, parameters = find_schedule(recipe.schedule)
        if "layout" not in schedule.parameters:
            return recipe
        parameters["layout"] = self.layout
        text = "".join(f":{key}={value}" for key, value in parameters.items())
        return replace(recipe, schedule=f"{schedule.name}{text}")

    def try_recipe(self, recipe: Recipe) -> Candidate:
        """Tries a recipe and records the candidate for the choice of later recipes."""
        candidate, choices = self.evaluate(recipe), recipe.schedule
        if candidate.score:
            self.best = min(self.best, candidate.score.seconds)
        if isinstance(choices, FoundRecipe):
            self.tried[choices] = candidate
        elif not recipe.by_rows and not candidate.refused:
            seconds = candidate.score.seconds if candidate.score else self.floors[choices]
            self.seeds.append((candidate, seconds))
        return candidate

    def evaluate(self, recipe: Recipe) -> Candidate:
        """Builds and scores a candidate, unless a bound shows that it is not the fastest."""
        choices, candidate = recipe.schedule, Candidate(recipe, recipe.family)
        try:
            if isinstance(choices, FoundRecipe):
                parts = found_parts(choices, self.work, self.ranks, self.prices)
                self.floors[choices] = estimate(parts, self.prices, self.pair)
            if not recipe.by_rows and self.floors.get(choices, 0.0) >= self.best:
                return replace(candidate, pruned=True)
            built = build(recipe, self.work, self.ranks, self.pass_, self.prices)
            self.check_owners(built)
            floor = self.floor(built, self.best)
            if not recipe.by_rows:
                self.floors[choices] = max(floor, self.floors.get(choices, 0.0))
            if floor >= self.best:
                return replace(candidate, pruned=True)
            return replace(candidate, plan=built, score=self.score(built))
        except PlanError as error:
            return replace(candidate, refused=str(error))

    def check_owners(self, plan: Plan) -> None:
        """Raises PlanError if the plan does not have the fixed layout, if any."""
        if self.owners is None:
            return
        for side, owner in zip((plan.partition.q, plan.partition.kv), self.owners, strict=True):
            plan_owners = owners_of_tokens(((b.positions, b.home) for b in side.blocks), len(owner))
            if not np.array_equal(plan_owners, owner):
                raise PlanError(f"its layout of tokens is not {self.layout}")

    def candidates(self) -> Iterator[Recipe]:
        """Yields found recipes; later recipes depend on the scores of earlier recipes."""
        yield from self.grouped_seeds()
        for choices in self.layout_choices():
            yield Recipe(choices)
        for variations in (self.first_key_choices, self.slice_choices, self.first_key_choices):
            for choices in self.fastest():
                for variant in variations(choices):
                    yield Recipe(variant)
        for choices in self.ranked_with_estimates()[:BEST_LAYOUTS]:
            for variant in self.offload_choices(choices):
                yield Recipe(variant)
        if self.pass_ == "backward":
            for choices in self.ranked_by_score()[:5]:
                yield from backward_recipes(Recipe(choices))

    def grouped_seeds(self) -> Iterator[Recipe]:
        """Yields the best seed of each schedule and layout with grouped rows.

        Includes pruned seeds only if rows on both sides of an edge of the mask see the same keys,
        since grouping usually matters then.
        """
        best, pruned = dict[tuple[str, object], Recipe](), shares_keys(self.work)
        for candidate, _ in sorted(self.seeds, key=lambda seed: seed[1]):
            layout = find_schedule(str(candidate.recipe.schedule))[1].get("layout")
            if candidate.score or pruned:
                best.setdefault((candidate.family, layout), candidate.recipe)
        if self.work.mask.fixed_length:
            yield from (replace(recipe, by_rows=True) for recipe in best.values())

    def layout_choices(self) -> Iterator[FoundRecipe]:
        """Yields layouts of several grains, by tokens and by work, with all groupings of rows."""
        names = [(self.layout, 0)] if self.layout else [("contiguous", 0), ("zigzag", 0)]
        if not self.layout:
            tokens = -(-self.work.seq // self.ranks)
            grains = [g for n in (1, 2, 4, 8) if (g := tokens // n) >= min(SHORTEST_PIECE, tokens)]
            names += [("pieces", g) for g in grains if g]
            names += [("work", percent) for percent in (100, 50, 25)]
        keep = KEEP_CHOICES[0] if self.pass_ == "backward" else None
        for layout, grain in names:
            for rows in ROW_GROUPINGS[1:]:
                yield FoundRecipe(layout or "", grain, rows, (1,), self.relay, own=2, keep=keep)

    def first_key_choices(self, choices: FoundRecipe) -> Iterator[FoundRecipe]:
        """Yields all choices of rows that attend own keys first, then a variant without relays."""
        for own in (0, 1, 2):
            yield replace(choices, own=own)
        if choices.relay:
            yield replace(choices, relay=0)

    def slice_choices(self, choices: FoundRecipe) -> Iterator[FoundRecipe]:
        """Yields variants with other head slices."""
        heads = self.work.kv_heads
        for counts in SLICE_CHOICES:
            if counts[0] <= heads if len(counts) == 1 else sum(counts) == heads:
                yield replace(choices, slices=counts)

    def fastest(self) -> list[FoundRecipe]:
        """Returns the fastest variant of each of the best layouts."""
        best = dict[tuple[str, int, str], FoundRecipe]()
        for choices in self.ranked_by_score():
            best.setdefault((choices.layout, choices.grain, choices.rows), choices)
        return [*best.values()][:BEST_LAYOUTS]

    def offload_choices(self, choices: FoundRecipe) -> Iterator[FoundRecipe]:
        """Yields offloads of several grains if the work of ranks is uneven."""
        score = self.tried[choices].score
        if score and max(score.busy) < UNEVEN_LOAD * np.mean(score.busy):
            return
        tokens = -(-self.work.seq // self.ranks)
        grain = min(SHORTEST_PIECE, max(1, tokens // 8))
        for n in (4, 8, 16):
            for counts in ((2,), (4,)):
                yield replace(choices, offload=max(grain, tokens // n), slices=counts)

    def ranked_with_estimates(self) -> list[FoundRecipe]:
        """Returns the found recipes, fastest first; pruned recipes rank by their estimates."""
        times = {
            f: t.score.seconds if t.score else self.floors.get(f) for f, t in self.tried.items()
        }
        ranked = [(time, n, f) for n, (f, time) in enumerate(times.items()) if time is not None]
        return [choices for *_, choices in sorted(ranked, key=lambda s: s[:2])]

    def ranked_by_score(self) -> list[FoundRecipe]:
        """Returns the scored recipes, fastest first."""
        ranked = [(t.score.seconds, n, f) for n, (f, t) in enumerate(self.tried.items()) if t.score]
        return [choices for *_, choices in sorted(ranked, key=lambda s: s[:2])]


def backward_recipes(recipe: Recipe) -> Iterator[Recipe]:
    """Yields the backward recipes of a forward recipe; found recipes vary the kept copies."""
    if isinstance(recipe.schedule, str):
        yield recipe
    else:
        for keep in KEEP_CHOICES:
            yield replace(recipe, schedule=replace(recipe.schedule, keep=keep))


def estimate(parts: Parts, prices: Prices, pair: float) -> float:
    """Returns a lower bound in seconds for plans of the given parts, from work and keys."""
    speeds, users = prices.speed_of_ranks(parts.ranks), parts.users
    pairs = np.bincount(parts.runs_on, parts.pairs, parts.ranks)
    work = pairs * pair * parts.work.heads / speeds
    is_owned = np.zeros_like(users)
    is_owned[np.arange(len(is_owned)), parts.kv_home] = True
    transfer = (users & ~is_owned).T @ parts.tokens * prices.near
    return float(max(work.max(), transfer.max()))


def _owners(pieces: tuple[Chunks, Chunks], work: Workload) -> list[NDArray[np.int32]]:
    tokens = work.seq, work.kv_seq
    return [owners_of_tokens(chunks, n) for chunks, n in zip(pieces, tokens, strict=True)]
