"""batch_planner(work, ranks, hardware)   returns a planner for batches of packed documents.

once        tries recipes on sample batches and ranks them by predicted time
each batch  lengths -> mask -> verified plans -> tables of a dynamic torch program
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ringloom.codegen import mask_tables
from ringloom.planner.errors import PlanError, RingloomError, brief
from ringloom.planner.given import require_integer
from ringloom.planner.ir import Pass, Plan
from ringloom.planner.masks.packing import within_documents
from ringloom.planner.plans import Plans
from ringloom.planner.search import FoundRecipe, Recipe, Score, build, explore
from ringloom.planner.workload import Workload, check_request
from ringloom.pricing import search_prices
from ringloom.simulator.hardware import Hardware
from ringloom.simulator.hardware import hardware as hardware_named
from ringloom.simulator.prediction import seconds_of, simulate
from ringloom.simulator.scenario import Scenario

PlannedPass = Literal["forward", "both"]
Lengths = tuple[int, ...]
DEFAULT_SCENARIO = Scenario()
SCHEDULES = "zigzag", "ring", "allgather", "ulysses"  # one for each way to send keys or heads
KEEP_CHOICES = (("Q", "KV", "OUT"), ())  # copies that a forward pass keeps: all or none
SAMPLES = 2  # random sample batches if none are given: the first for the search, both for ranking
MIN_LENGTH = 64  # tokens of the shortest random document: a tile of kernels for short calls
BUDGET = 24  # recipes of a search: a minute of simulations on 64 ranks
RANKED = 4  # best recipes of the search, ranked on all samples and in both passes


@dataclass(frozen=True, eq=False)
class Batch:
    """One batch with its document lengths, the recipe used, verified plans, and their tables."""

    lengths: Lengths
    recipe: str
    plans: Plans
    tables: dict[str, NDArray[Any]]

    def __repr__(self) -> str:
        return f"<Batch {self.recipe}: documents of {sum(self.lengths):,} tokens together>"


@dataclass(frozen=True, slots=True)
class Choice:
    """A recipe for the forward pass, and for the backward pass if both are planned."""

    forward: Recipe
    keep: tuple[str, ...] | None  # copies that the forward pass of a searched recipe keeps

    def __str__(self) -> str:
        schedule = self.forward.schedule
        if isinstance(schedule, FoundRecipe) and self.keep is not None:
            return str(replace(schedule, keep=self.keep))
        return str(self.forward)


class BatchPlanner:
    """A planner for batches of packed documents, which also makes their tables.

    `ranked`: recipes with their predicted seconds, summed over the sample batches, the fastest
    first. If the first recipe cannot plan a batch, the next one is used.
    """

    def __init__(
        self, work: Workload, ranks: int, hardware: Hardware, pass_: PlannedPass, cache_size: int
    ) -> None:
        self.work, self.ranks, self.pass_ = work, ranks, pass_
        self._hardware = hardware
        self._prices = search_prices(work, hardware)
        self.ranked: tuple[tuple[Choice, float], ...] = ()
        self._cached_batch = lru_cache(maxsize=cache_size)(self._make_batch)

    def __repr__(self) -> str:
        return f"<BatchPlanner {self.recipe}: {self.ranks} ranks>"

    @property
    def recipe(self) -> str:
        """Returns the fastest recipe as text."""
        return str(self.ranked[0][0])

    def __call__(self, lengths: Iterable[int]) -> Batch:
        """Returns the verified plans and the tables of a batch; recent batches are cached.

        Pass `tables` to `Tables` of a program that was emitted with dynamic=True for the same ranks
        and heads. Raises PlanError for lengths that are not integers, are negative or are all 0.
        """
        return self._cached_batch(as_lengths(lengths))

    def _make_batch(self, lengths: Lengths) -> Batch:
        work, failure = self.packed(lengths), PlanError("no recipe has been chosen")
        for choice, _ in self.ranked:
            try:
                plans = self.plans(choice, work)
                return Batch(lengths, str(choice), plans, mask_tables(plans, "torch"))
            except PlanError as error:
                failure = error
        raise failure

    def packed(self, lengths: Lengths) -> Workload:
        """Returns the workload of a batch; the mask applies within each document."""
        tokens, mask = sum(lengths), within_documents(self.work.mask, lengths)
        return replace(self.work, seq=tokens, kv_seq=tokens, mask=mask)

    def plans(self, choice: Choice, work: Workload) -> Plans:
        """Returns the verified plans of a choice."""
        recipe = choice.forward
        forward = self.build_plan(recipe, work, "forward")
        if self.pass_ == "forward":
            return Plans(forward)
        if not isinstance(recipe.schedule, str):
            recipe = replace(recipe, schedule=replace(recipe.schedule, keep=choice.keep))
        return Plans(forward, self.build_plan(recipe, work, "backward"))

    def build_plan(self, recipe: Recipe, work: Workload, pass_: Pass) -> Plan:
        """Builds the verified plan of a recipe."""
        return build(recipe, work, self.ranks, pass_, self._prices)

    def rank_recipes(self, samples: Sequence[Lengths]) -> None:
        """Ranks recipes by their predicted time on sample batches."""
        works = [self.packed(lengths) for lengths in samples]
        times = list[tuple[Choice, float]]()
        for choice in self.choices(works[0]):
            with suppress(PlanError):
                plans = [self.plans(choice, work) for work in works]
                seconds = sum(seconds_of(pair, self._hardware, DEFAULT_SCENARIO) for pair in plans)
                times.append((choice, seconds))
        if not times:
            raise PlanError(f"no recipe can plan these batches on {self.ranks} ranks")
        self.ranked = tuple(sorted(times, key=lambda x: x[1]))

    def choices(self, work: Workload) -> Iterator[Choice]:
        """Yields schedules, then the best recipes of a search for the forward pass."""
        node = self._hardware.ranks_per_node
        names = [*SCHEDULES, *([f"usp:ulysses={node}"] if 1 < node < self.ranks else [])]
        seeds = [Recipe.parse(name) for name in names]
        yield from (Choice(recipe, None) for recipe in seeds)
        ranks, prices = self.ranks, self._prices
        tried = explore(work, ranks, "forward", prices, self.score, seeds=seeds, budget=BUDGET)
        scored = [x for x in tried if x.score and isinstance(x.recipe.schedule, FoundRecipe)]
        scored.sort(key=lambda x: x.score.seconds if x.score else 0.0)
        for x in scored[:RANKED]:
            for keep in KEEP_CHOICES if self.pass_ == "both" else (None,):
                yield Choice(x.recipe, keep)

    def score(self, plan: Plan) -> Score:
        """Returns the predicted time, loads and memory of a plan."""
        run = simulate(plan, self._hardware, record=False)
        return Score(run.makespan, tuple(run.busy.tolist()), run.peak_bytes)


def batch_planner(
    work: Workload,
    ranks: int,
    hardware: Hardware | str | Path,
    *,
    samples: Sequence[Iterable[int]] = (),
    pass_: PlannedPass = "both",
    seed: int = 0,
    cache_size: int = 64,
) -> BatchPlanner:
    """Chooses recipes for batches of packed documents and returns a planner for such batches.

    `work`: the workload of a batch; its mask applies within each document. `samples`: document
    lengths [tokens] of typical batches; without samples, `seed` draws log-uniform lengths up to
    half a batch. `cache_size`: number of recent batches whose tables are cached.
    Raises PlanError if queries and keys differ in number or no recipe can be built, RingloomError
    for unknown hardware and any other pass.
    """
    check_request(work, ranks, "batch_planner(work, ranks, ...)")
    if pass_ not in ("forward", "both"):
        raise RingloomError(f"pass_ must be 'forward' or 'both', not {pass_!r}")
    if work.seq != work.kv_seq:
        raise PlanError("packed documents attend to themselves: seq and kv_seq must be equal")
    seed, cache_size = require_integer("seed", seed), require_integer("cache_size", cache_size)
    planner = BatchPlanner(work, ranks, hardware_named(hardware), pass_, cache_size)
    planner.rank_recipes([as_lengths(x) for x in samples] or draw_samples(work.seq, seed))
    return planner


def as_lengths(lengths: Iterable[int]) -> Lengths:
    """Returns document lengths as a tuple of integers."""
    if not isinstance(lengths, Iterable):
        raise PlanError(f"a batch must be a list of document lengths, not {brief(lengths)}")
    return tuple(require_integer("the length of a document,", x) for x in lengths)


def draw_samples(tokens: int, seed: int) -> list[Lengths]:
    """Draws the document lengths of sample batches, each of `tokens` tokens."""
    random, batches = np.random.default_rng(seed), list[Lengths]()
    low, high = np.log(min(MIN_LENGTH, tokens)), np.log(max(1, tokens // 2))
    for _ in range(SAMPLES):
        lengths, left = list[int](), tokens
        while left:
            lengths.append(min(left, int(np.exp(random.uniform(low, max(low, high))))))
            left -= lengths[-1]
        batches.append(tuple(lengths))
    return batches
