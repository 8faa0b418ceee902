"""compare(work, ranks, hardware)   verifies, simulates and, on request, executes schedules."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from ringloom.advice import Recommendation, recommend, why
from ringloom.planner.errors import MultiPlanError, RingloomError
from ringloom.planner.one_line import both_ends
from ringloom.planner.plans import AnyPlans, Passes, Plans
from ringloom.planner.workload import Workload, check_request
from ringloom.rows import LABELS, Refusal, Row, cells, flat, notes
from ringloom.simulator.confidence import unvalidated
from ringloom.simulator.hardware import Hardware
from ringloom.simulator.hardware import hardware as find_hardware
from ringloom.simulator.pictures import COMPUTE, new_axes
from ringloom.simulator.scenario import Scenario, scenario_of
from ringloom.trials import (
    Case,
    Track,
    Trials,
    against,
    amount,
    asked_for,
    best_of_each,
    feasible,
)
from ringloom.views.units import counted, in_lines, length, seconds

PASSES: tuple[Passes, ...] = ("forward", "backward", "both")
ORDINARY = Scenario()


@dataclass(frozen=True, eq=False)
class Comparison:
    """Schedules compared for one workload on one machine; it prints as the table of `rows`.

    `cases`: the fastest first. `among`: the rows of all compared schedules if `fastest` dropped
    some. `tried`: number of settings beyond the standard ones; only the best setting of each
    schedule has a row. `pruned`: how many of them were not simulated because their kernels alone
    take longer than the fastest schedule. `split_tried` schedules were simulated with messages
    split block by block; `split_skipped` could not save 10% that way. `grouped_tried` were tried
    with one kernel call for rows that see the same keys. `unvalidated`: a sentence if no measured
    times have validated the order of schedules on such a machine.
    """

    work: Workload
    ranks: int
    hardware: str
    pass_: Passes
    scenario: Scenario
    cases: tuple[Case, ...]
    refused: tuple[Refusal, ...] = ()
    among: tuple[Row, ...] = ()
    tried: int = 0
    pruned: int = 0
    split_tried: int = 0
    split_skipped: int = 0
    grouped_tried: int = 0
    unvalidated: str = ""

    @property
    def rows(self) -> list[Row]:
        """Returns a row per schedule that can run, the fastest first."""
        return sorted((case.row for case in self.cases), key=lambda row: row.order)

    def as_rows(self) -> list[dict[str, Any]]:
        """Returns rows for JSON; schedules that cannot run come last, with only a `reason`."""
        every: list[Row | Refusal] = [*self.rows, *self.refused]
        return [row.as_dict() for row in every]

    @property
    def recommendation(self) -> Recommendation:
        """Returns the schedule to use, the reason, and the schedules too close to call."""
        return recommend(self.among or self.rows, self.unvalidated)

    @property
    def why(self) -> str:
        """Returns one sentence that explains the differences in time."""
        return why(self.rows)

    @property
    def title(self) -> str:
        """Returns the workload, the machine, non-default conditions and the number of rows."""
        said = asked(self.work, self.pass_, self.ranks, self.hardware, self.scenario)
        if self.among:
            said += f"; the fastest of {len(self.among)} schedules"
            said += ", and ring" * any(case.row.schedule == "ring" for case in self.cases)
        return said

    def fastest(self, most: int) -> "Comparison":
        """Returns at most `most` schedules for pictures: a given plan, ring, then the fastest."""
        if len(self.cases) <= most:
            return self
        first = sorted(self.rows, key=lambda row: not (row.added or row.schedule == "ring"))
        kept = [row.schedule for row in first[:most]]
        cases = tuple(case for case in self.cases if case.row.schedule in kept)
        return replace(self, cases=cases, among=tuple(self.rows))

    def __repr__(self) -> str:
        schedules, best = counted(len(self.cases), "schedule"), self.rows[0]
        return (
            f"<Comparison of {schedules}, {counted(self.ranks, 'rank')} of {self.hardware}:"
            f" {best.schedule} takes {seconds(best.makespan_s)}>"
        )

    def _repr_html_(self) -> str:
        """Returns the table as HTML without styles of its own."""
        lines = ["".join(f"<th>{label}</th>" for label in ("schedule", *LABELS))]
        for row in self.rows:
            numbers = "".join(f"<td>{cell.text}</td>" for cell in cells(row))
            lines.append(f"<th>{escape(row.schedule)}</th>{numbers}")
        for one in self.refused:
            name, wide = escape(one.schedule), f'<td colspan="{len(LABELS)}">'
            lines.append(f"<th>{name}</th>{wide}{one.verdict}: {escape(one.reason)}</td>")
        caption, advice = f"<caption>{escape(self.title)}</caption>", self.recommendation.reason
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        below = "".join(f"<p>{escape(text)}</p>" for text in [*notes(self.rows), advice])
        return f"<table>{caption}{body}</table>{below}"

    def to_pandas(self) -> Any:
        """Returns the rows as a pandas DataFrame; raises RingloomError without pandas."""
        return self._frame("pandas")

    def to_polars(self) -> Any:
        """Returns the rows as a polars DataFrame; raises RingloomError without polars."""
        return self._frame("polars")

    def _frame(self, library: str) -> Any:
        try:
            return import_module(library).DataFrame(list(map(flat, self.as_rows())))
        except ModuleNotFoundError:
            message = f"{library} is not installed: pip install {library}, or use as_rows()"
            raise RingloomError(message) from None

    def plot(self, axes: Any = None) -> Any:
        """Draws busy and idle time of each schedule in ms on matplotlib axes; returns the axes."""
        axes, rows = new_axes(axes), self.rows
        names, times = (
            [in_lines(row.schedule) for row in rows],
            [1e3 * row.makespan_s for row in rows],
        )
        busy = [1e3 * row.makespan_s * (1 - row.idle_fraction) for row in rows]
        axes.barh(names, times, color="#b8c0c8", label="idle (average)")
        axes.barh(names, busy, color=COMPUTE, label="busy")
        bound = 1e3 * max((row.bound_s for row in rows), default=0.0)
        axes.axvline(bound, color=axes.xaxis.label.get_color(), lw=1.5, label="lower bound")
        axes.invert_yaxis()  # the fastest on top
        axes.set(xlabel="time (ms)")
        axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
        return axes

    def __str__(self) -> str:
        from ringloom.views.tables import comparison_table

        console = Console(file=StringIO(), width=100, markup=False, emoji=False)
        checked = any(row.exact is not None for row in self.rows)
        table = comparison_table(self.rows, checked, self.refused)
        console.print(self.title, table, self.recommendation.reason, sep="\n")
        return str(console.file.getvalue()).rstrip()  # type: ignore[attr-defined]


def asked(
    work: Workload, pass_: Passes, ranks: int, where: str = "", scenario: Scenario = ORDINARY
) -> str:
    """Returns a workload, its ranks, their machine and non-default conditions in words."""
    passes = "forward and backward" if pass_ == "both" else pass_
    batch = f"{work.batch} x " if work.batch > 1 else ""
    grouped = [counted(work.kv_heads, "KV head")] * (work.kv_heads != work.heads)
    values = "" if work.v_head_dim == work.head_dim else f" with values of {work.v_head_dim}"
    return ", ".join(
        [
            f"{passes} of {batch}{lengths(work)}",
            both_ends(str(work.mask)),
            f"{counted(work.heads, 'head')} of {work.head_dim}{values}",
            *grouped,
            *["sinks"] * work.sinks,
            work.dtype,
            counted(ranks, "rank") + (f" of {where}" if where else ""),
            *scenario.describe(),
        ]
    )


def lengths(work: Workload) -> str:
    """Returns the number of tokens, or the numbers of queries and keys, in words."""
    if work.kv_seq == work.seq:
        return counted(work.seq, "token", length)
    queries = counted(work.seq, "query token", length)
    return f"{queries} over {counted(work.kv_seq, 'key', length)}"


def compare(
    work: Workload,
    ranks: int,
    hardware: Hardware | str | Path,
    schedules: Sequence[str] | None = None,
    *,
    pass_: Passes = "forward",
    overlap: bool = True,
    scenario: Scenario | Mapping[str, Any] | None = None,
    checked: bool = False,
    variants: bool = True,
    memory: float | None = None,
    time_limit: float | None = None,
    plans: AnyPlans | None = None,
    track: Track = iter,
) -> Comparison:
    """Plans, verifies and simulates schedules, by default those that suit workload and machine.

    The default set includes every degree of Ulysses that divides the heads; collectives follow the
    machine's nodes unless a schedule sets them (`allgather:node=1`). Ring is always simulated as
    the baseline for speedups. `scenario`: stragglers, slow links and other conditions.
    `overlap=False`: transfers do not overlap compute. `variants`: if no schedule is named, also
    try more settings, such as layouts, stages and gathers, and list the fastest setting of each
    schedule; also list a schedule with messages split block by block ("usp --trim blocks"), or
    with one kernel call for rows that see the same keys ("ulysses --by-rows"), where that saves at
    least 10% of the schedule's time. `checked`: also execute each schedule on `ranks` x 64 tokens
    in float64 and compare it with dense attention. `memory`: bytes per rank for attention, by
    default the chip's. Schedules that need more, that do not fit the ranks or heads, or that were
    not started within `time_limit` seconds, are `refused`. `plans`: verified plans of this
    workload, such as those of a search, to compare as well. `track` may wrap the names to show
    progress. Raises PlanError for unknown schedules, for plans of another workload, and if no
    schedule can run.
    """
    check_request(work, ranks, "compare(work, ranks, hardware)")
    limit = amount(time_limit, "time_limit", "seconds", math.inf)
    machine = find_hardware(hardware)
    what_if = scenario_of(scenario or ORDINARY)
    what_if = replace(what_if, overlap=what_if.overlap and overlap)
    nodes = what_if.nodes(machine, ranks)
    names = asked_for(schedules, work, ranks, nodes, variants=False)
    more = asked_for(None, work, ranks, nodes)[len(names) :] if variants and not schedules else []
    room = amount(memory, "memory", "bytes", machine["memory.capacity"])
    trials = Trials(work, ranks, pass_, machine, what_if, room, limit)
    ring = trials.case("ring")

    def outcome(name: str) -> Case | Refusal:
        return feasible(name, lambda _: ring, room) if name == "ring" else trials.outcome(name)

    outcomes = [*map(outcome, track(names))]
    cases = [one for one in outcomes if isinstance(one, Case)]
    refused = [one for one in outcomes if isinstance(one, Refusal)]
    beyond = trials.improved(cases, track(more))
    if more:
        cases = best_of_each([*cases, *beyond.cases])
    if not cases:
        reasons = (f"{each.schedule}: {each.reason}" for each in refused)
        raise MultiPlanError("\n".join(["none of these schedules can run", *reasons]))
    splits = trials.splits(cases) if variants else []
    promising = {one.name: one.worth for one in splits if trials.is_promising(one)}
    split = [one for one in map(trials.outcome, track(list(promising))) if isinstance(one, Case)]
    cases += [one for one in split if one.row.makespan_s <= promising[one.row.schedule]]
    grouped = trials.grouped(cases if variants else [], track)
    cases += grouped.cases
    cases = [trials.executed(one) for one in cases] if checked else cases
    if plans is not None:
        one = trials.added(Plans.of(plans), checked)
        cases = [*(x for x in cases if x.row.schedule != one.row.schedule), one]
    cases = sorted((against(ring, one) for one in cases), key=lambda one: one.row.order)
    sure = trials.with_intervals(cases, track)
    shown = machine.name, pass_, what_if
    counts = beyond.tried, beyond.pruned, len(split), len(splits) - len(split), grouped.tried
    told = unvalidated(machine)
    return Comparison(work, ranks, *shown, tuple(sure), tuple(refused), (), *counts, told)
