"""batch_planner(work, ranks, hardware)   plans of packed documents, batch after batch.

settled   once: recipes are tried on sample batches, and ranked by what is predicted of them
made      for each batch: lengths -> mask -> plans, verified -> tables of a dynamic torch program
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ringloom.codegen import tables
from ringloom.planner.errors import PlanError, RingloomError, brief
from ringloom.planner.given import whole
from ringloom.planner.ir import Pass, Plan
from ringloom.planner.masks.packing import within
from ringloom.planner.plans import Plans
from ringloom.planner.search import Found, Recipe, Score, build, explore
from ringloom.planner.workload import Workload, check_request
from ringloom.pricing import search_prices
from ringloom.simulator.hardware import Hardware
from ringloom.simulator.hardware import hardware as hardware_named
from ringloom.simulator.prediction import seconds_of, simulate
from ringloom.simulator.scenario import Scenario

Wanted = Literal["forward", "both"]
Lengths = tuple[int, ...]
ORDINARY = Scenario()
NAMED = ("zigzag", "ring", "allgather", "ulysses")  # one of each way in which keys or heads travel
KEEPS = (("Q", "KV", "OUT"), ())  # what a forward pass leaves in place: all its copies, or none
DRAWN = 2  # sample batches where none are given: one to search on, one more to judge by
SHORTEST = 64  # tokens of the shortest document drawn: a tile of kernels for short calls
TRIED = 24  # found recipes: a minute of simulations on 64 ranks
RANKED = 4  # of those, that are judged on all samples and in both passes


@dataclass(frozen=True, eq=False)
class Batch:
    """One batch: its documents, the recipe that was followed, verified plans, and their tables."""

    lengths: Lengths
    recipe: str
    plans: Plans
    tables: dict[str, NDArray[Any]]

    def __repr__(self) -> str:
        return f"<Batch {self.recipe}: documents of {sum(self.lengths):,} tokens together>"


@dataclass(frozen=True, slots=True)
class Choice:
    """Recipes of both passes, of the forward pass alone where no other is wanted."""

    forward: Recipe
    keep: tuple[str, ...] | None  # of a found recipe: what its forward pass leaves in place

    def __str__(self) -> str:
        schedule = self.forward.schedule
        if isinstance(schedule, Found) and self.keep is not None:
            return str(replace(schedule, keep=self.keep))
        return str(self.forward)


class BatchPlanner:
    """Makes the plan and the tables of a batch of packed documents from their lengths.

    `ranked`: the recipes that were judged and their predicted seconds, summed over the sample
    batches, the fastest first. A batch for which the first cannot be built takes the next.
    """

    def __init__(
        self, work: Workload, ranks: int, hardware: Hardware, pass_: Wanted, kept: int
    ) -> None:
        self.work, self.ranks, self.pass_ = work, ranks, pass_
        self._hardware = hardware
        self._prices = search_prices(work, hardware)
        self.ranked: tuple[tuple[Choice, float], ...] = ()
        self._made = lru_cache(maxsize=kept)(self._make)

    def __repr__(self) -> str:
        return f"<BatchPlanner {self.recipe}: {self.ranks} ranks>"

    @property
    def recipe(self) -> str:
        """The text of the recipe that is followed."""
        return str(self.ranked[0][0])

    def __call__(self, lengths: Iterable[int]) -> Batch:
        """Return the verified plans and the tables of a batch; the latest are kept by lengths.

        `tables` are what `Tables` of a program takes that was emitted with dynamic=True for as many
        ranks and heads. Raises PlanError for lengths that are no whole numbers, below 0 or all 0.
        """
        return self._made(as_lengths(lengths))

    def _make(self, lengths: Lengths) -> Batch:
        work, failure = self.packed(lengths), PlanError("no recipe is settled")
        for choice, _ in self.ranked:
            try:
                plans = self.plans(choice, work)
                return Batch(lengths, str(choice), plans, tables(plans, "torch"))
            except PlanError as error:
                failure = error
        raise failure

    def packed(self, lengths: Lengths) -> Workload:
        """The workload of a batch: the mask within each of its documents."""
        tokens, mask = sum(lengths), within(self.work.mask, lengths)
        return replace(self.work, seq=tokens, kv_seq=tokens, mask=mask)

    def plans(self, choice: Choice, work: Workload) -> Plans:
        """The verified plans of a choice."""
        forward = self.one(choice.forward, work, "forward")
        if self.pass_ == "forward":
            return Plans(forward)
        schedule = choice.forward.schedule
        if isinstance(schedule, str):
            return Plans(forward, self.one(choice.forward, work, "backward"))
        back = replace(choice.forward, schedule=replace(schedule, keep=choice.keep))
        return Plans(forward, self.one(back, work, "backward"))

    def one(self, recipe: Recipe, work: Workload, pass_: Pass) -> Plan:
        """The verified plan of a recipe."""
        return build(recipe, work, self.ranks, pass_, self._prices)

    def settle(self, samples: Sequence[Lengths]) -> None:
        """Rank recipes by sample batches."""
        works = [self.packed(lengths) for lengths in samples]
        judged = list[tuple[Choice, float]]()
        for choice in self.choices(works[0]):
            with suppress(PlanError):
                made = [self.plans(choice, work) for work in works]
                seconds = sum(seconds_of(plans, self._hardware, ORDINARY) for plans in made)
                judged.append((choice, seconds))
        if not judged:
            raise PlanError(f"no recipe plans these batches on {self.ranks} ranks")
        self.ranked = tuple(sorted(judged, key=lambda x: x[1]))

    def choices(self, work: Workload) -> Iterator[Choice]:
        """Named schedules, and the recipes that were found best for a forward pass."""
        node = self._hardware.ranks_per_node
        names = [*NAMED, *([f"usp:ulysses={node}"] if 1 < node < self.ranks else [])]
        named = [Recipe.parse(name) for name in names]
        yield from (Choice(recipe, None) for recipe in named)
        ranks, prices = self.ranks, self._prices
        tried = explore(work, ranks, "forward", prices, self.score, seeds=named, budget=TRIED)
        scored = [x for x in tried if x.score and isinstance(x.recipe.schedule, Found)]
        scored.sort(key=lambda x: x.score.seconds if x.score else 0.0)
        for x in scored[:RANKED]:
            for keep in KEEPS if self.pass_ == "both" else (None,):
                yield Choice(x.recipe, keep)

    def score(self, made: Plan) -> Score:
        """The score of a plan: its predicted time, loads and memory."""
        run = simulate(made, self._hardware, record=False)
        return Score(run.makespan, tuple(run.busy.tolist()), run.peak_bytes)


def batch_planner(
    work: Workload,
    ranks: int,
    hardware: Hardware | str | Path,
    *,
    samples: Sequence[Iterable[int]] = (),
    pass_: Wanted = "both",
    seed: int = 0,
    kept: int = 64,
) -> BatchPlanner:
    """Settle how batches of packed documents are planned, and return what plans each of them.

    `work`: the workload of a batch; its mask holds within each document, and its tokens are those
    of sample batches that are drawn. `samples`: the lengths in tokens of typical batches; without
    them `seed` draws lengths of which each order of magnitude is as frequent, up to half a batch.
    `kept`: batches of the latest lengths whose tables are kept.
    Raises PlanError for keys that are not those of the queries, and where no recipe can be built;
    RingloomError for unknown hardware and another pass.
    """
    check_request(work, ranks, "batch_planner(work, ranks, ...)")
    if pass_ not in ("forward", "both"):
        raise RingloomError(f"batches are planned for the pass forward or both, not {pass_!r}")
    if work.seq != work.kv_seq:
        raise PlanError("packed documents attend to themselves: as many keys as queries are needed")
    seed, kept = whole("seed", seed), whole("kept", kept)
    planner = BatchPlanner(work, ranks, hardware_named(hardware), pass_, kept)
    planner.settle([as_lengths(x) for x in samples] or drawn(work.seq, seed))
    return planner


def as_lengths(lengths: Iterable[int]) -> Lengths:
    """The lengths of documents as plain numbers."""
    if not isinstance(lengths, Iterable):
        raise PlanError(f"a batch is a list of lengths of documents, not {brief(lengths)}")
    return tuple(whole("the length of a document,", x) for x in lengths)


def drawn(tokens: int, seed: int) -> list[Lengths]:
    """Lengths of sample batches of so many tokens."""
    random, batches = np.random.default_rng(seed), list[Lengths]()
    low, high = np.log(min(SHORTEST, tokens)), np.log(max(1, tokens // 2))
    for _ in range(DRAWN):
        lengths, left = list[int](), tokens
        while left:
            lengths.append(min(left, int(np.exp(random.uniform(low, max(low, high))))))
            left -= lengths[-1]
        batches.append(tuple(lengths))
    return batches
