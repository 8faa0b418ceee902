"""compare(work, ranks, hardware)   plans, verifies and simulates schedules, and recommends one."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib import import_module
from io import StringIO
from itertools import accumulate
from pathlib import Path
from typing import Any

from rich.console import Console

from ringloom.planner.errors import MultiPlanError, RingloomError
from ringloom.planner.one_line import shorten_middle
from ringloom.planner.plans import AnyPlans, Passes, Plans
from ringloom.planner.workload import Workload, check_request
from ringloom.recommendation import Recommendation, recommend, why
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
    amount,
    best_of_each,
    case_or_refusal,
    schedule_names,
    with_speedup,
)
from ringloom.views.units import counted, in_lines, length, seconds

PASSES: tuple[Passes, ...] = ("forward", "backward", "both")
DEFAULT_SCENARIO = Scenario()


@dataclass(frozen=True, eq=False)
class Comparison:
    """Schedules compared for one workload on one machine; it prints as the table of `rows`.

    `cases`: the fastest first. `among`: the rows of all compared schedules if `fastest` dropped
    some. `tried`: number of settings beyond the standard settings; only the best setting of each
    schedule has a row. `pruned`: how many of these were not simulated, because their kernels alone
    take longer than the fastest schedule. `split_tried`: number of schedules simulated with
    messages split block by block; `split_skipped`: number that could not save 10% that way.
    `grouped_tried`: number of schedules tried with one kernel call for rows that see the same keys.
    `unvalidated`: a warning if no measurements validate the order of schedules on such machines.
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
        rows: list[Row | Refusal] = [*self.rows, *self.refused]
        return [row.as_dict() for row in rows]

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
        title = describe_request(self.work, self.pass_, self.ranks, self.hardware, self.scenario)
        if self.among:
            title += f"; the fastest of {len(self.among)} schedules"
            title += ", and ring" * any(case.row.schedule == "ring" for case in self.cases)
        return title

    def fastest(self, limit: int) -> "Comparison":
        """Returns at most `limit` schedules: a given plan, ring, then the fastest."""
        if len(self.cases) <= limit:
            return self
        rows = sorted(self.rows, key=lambda row: not (row.added or row.schedule == "ring"))
        names = [row.schedule for row in rows[:limit]]
        cases = tuple(case for case in self.cases if case.row.schedule in names)
        return replace(self, cases=cases, among=tuple(self.rows))

    def __repr__(self) -> str:
        schedules, best = counted(len(self.cases), "schedule"), self.rows[0]
        return (
            f"<Comparison of {schedules}, {counted(self.ranks, 'rank')} of {self.hardware}:"
            f" {best.schedule} takes {seconds(best.makespan_s)}>"
        )

    def _repr_html_(self) -> str:
        """Returns the table as HTML without styles."""
        lines = ["".join(f"<th>{label}</th>" for label in ("schedule", *LABELS))]
        for row in self.rows:
            numbers = "".join(f"<td>{cell.text}</td>" for cell in cells(row))
            lines.append(f"<th>{escape(row.schedule)}</th>{numbers}")
        for refusal in self.refused:
            reason = f"{refusal.verdict}: {escape(refusal.reason)}"
            cell = f'<td colspan="{len(LABELS)}">{reason}</td>'
            lines.append(f"<th>{escape(refusal.schedule)}</th>{cell}")
        caption, advice = f"<caption>{escape(self.title)}</caption>", self.recommendation.reason
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        paragraphs = "".join(f"<p>{escape(text)}</p>" for text in [*notes(self.rows), advice])
        return f"<table>{caption}{body}</table>{paragraphs}"

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
        """Draws the busy and idle time of each schedule [ms] on matplotlib axes; returns them."""
        axes, rows = new_axes(axes), self.rows
        names = [in_lines(row.schedule) for row in rows]
        times = [1e3 * row.makespan_s for row in rows]
        busy = [1e3 * row.makespan_s * (1 - row.idle_fraction) for row in rows]
        heights = [max(1.0, 0.9 * len(name.splitlines())) for name in names]  # for long names
        centres = [
            end - height / 2 for end, height in zip(accumulate(heights), heights, strict=True)
        ]
        axes.barh(centres, times, color="#b8c0c8", label="idle (average)")
        axes.barh(centres, busy, color=COMPUTE, label="busy")
        axes.set_yticks(centres, names)
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


def describe_request(
    work: Workload,
    pass_: Passes,
    ranks: int,
    machine: str = "",
    scenario: Scenario = DEFAULT_SCENARIO,
) -> str:
    """Returns the workload, ranks, machine and non-default conditions in words."""
    passes = "forward and backward" if pass_ == "both" else pass_
    batch = f"{work.batch} x " if work.batch > 1 else ""
    kv_heads = [counted(work.kv_heads, "KV head")] * (work.kv_heads != work.heads)
    values = "" if work.v_head_dim == work.head_dim else f" with values of {work.v_head_dim}"
    return ", ".join(
        [
            f"{passes} of {batch}{lengths(work)}",
            shorten_middle(str(work.mask)),
            f"{counted(work.heads, 'head')} of {work.head_dim}{values}",
            *kv_heads,
            *["sinks"] * work.sinks,
            work.dtype,
            counted(ranks, "rank") + (f" of {machine}" if machine else ""),
            *scenario.describe(),
        ]
    )


def lengths(work: Workload) -> str:
    """Returns the number of tokens, or of queries and keys, in words."""
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

    The default set includes every degree of Ulysses that divides the heads. Collectives follow the
    machine's nodes unless a schedule sets the node size (`allgather:node=1`). Ring is always
    simulated as the baseline for speedups.

    `scenario`: stragglers, slow links and other conditions. `overlap=False`: transfers do not
    overlap compute. `variants`: if no schedule is named, also try more settings, such as layouts,
    stages and gathers, and list the fastest setting of each schedule; also list a schedule with
    messages split block by block ("usp --trim blocks"), or with one kernel call for rows that see
    the same keys ("ulysses --by-rows"), if that saves at least 10% of the schedule's time.
    `checked`: also execute each schedule on `ranks` x 64 tokens in float64 and compare it with
    dense attention. `memory`: bytes per rank for attention, by default all of the chip's memory.
    Schedules that need more memory, that do not fit the ranks or heads, or that were not started
    within `time_limit` seconds, are `refused`. `plans`: verified plans of this workload, such as
    the result of a search, to compare as well. `track` may wrap the names to show progress. Raises
    PlanError for unknown schedules, for plans of another workload, and if no schedule can run.
    """
    check_request(work, ranks, "compare(work, ranks, hardware)")
    seconds_limit = amount(time_limit, "time_limit", "seconds", math.inf)
    machine = find_hardware(hardware)
    what_if = scenario_of(scenario or DEFAULT_SCENARIO)
    what_if = replace(what_if, overlap=what_if.overlap and overlap)
    nodes = what_if.nodes(machine, ranks)
    names = schedule_names(schedules, work, ranks, nodes, variants=False)
    settings = []
    if variants and not schedules:
        settings = schedule_names(None, work, ranks, nodes)[len(names) :]
    memory_limit = amount(memory, "memory", "bytes", machine["memory.capacity"])
    trials = Trials(work, ranks, pass_, machine, what_if, memory_limit, seconds_limit)
    ring = trials.case("ring")

    def outcome(name: str) -> Case | Refusal:
        if name == "ring":
            return case_or_refusal(name, lambda _: ring, memory_limit)
        return trials.outcome(name)

    outcomes = [*map(outcome, track(names))]
    cases = [x for x in outcomes if isinstance(x, Case)]
    refused = [x for x in outcomes if isinstance(x, Refusal)]
    further = trials.try_settings(cases, track(settings))
    if settings:
        cases = best_of_each([*cases, *further.cases])
    if not cases:
        reasons = (f"{row.schedule}: {row.reason}" for row in refused)
        raise MultiPlanError("\n".join(["none of these schedules can run", *reasons]))
    splits = trials.splits(cases) if variants else []
    limits = {split.name: split.limit for split in splits if trials.is_promising(split)}
    split = [x for x in map(trials.outcome, track(list(limits))) if isinstance(x, Case)]
    cases += [case for case in split if case.row.makespan_s <= limits[case.row.schedule]]
    grouped = trials.try_merged_rows(cases if variants else [], track)
    cases += grouped.cases
    cases = [trials.execute(case) for case in cases] if checked else cases
    if plans is not None:
        given = trials.given_case(Plans.of(plans), checked)
        cases = [*(case for case in cases if case.row.schedule != given.row.schedule), given]
    cases = sorted((with_speedup(case, ring) for case in cases), key=lambda case: case.row.order)
    return Comparison(
        work,
        ranks,
        machine.name,
        pass_,
        what_if,
        tuple(trials.add_intervals(cases, track)),
        tuple(refused),
        tried=further.tried,
        pruned=further.pruned,
        split_tried=len(split),
        split_skipped=len(splits) - len(split),
        grouped_tried=grouped.tried,
        unvalidated=unvalidated(machine),
    )
