"""compare(work, ranks, hardware)   schedules verified, predicted, and executed on request."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from importlib import import_module
from io import StringIO
from itertools import chain
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from planner.analysis.balance import imbalance
from planner.errors import PlanError, Reasons, RingloomError
from planner.masks import Full
from planner.one_line import both_ends
from planner.planning import Trim, find_schedule, plan
from planner.plans import Passes, Plans
from planner.schedules import comparable
from planner.workload import Workload, check_request
from ringloom.advice import Recommendation, recommend, why
from ringloom.rows import LABELS, Load, Refusal, Row, cells, flat, shortage
from ringloom.views.units import counted, in_lines, length, seconds
from runtimes.validation import check
from simulator.confidence import interval, ratio_interval, spread
from simulator.facts import over_average, work_of
from simulator.hardware import Hardware
from simulator.hardware import hardware as find_hardware
from simulator.pictures import COMPUTE, new_axes
from simulator.prediction import Prediction, ratio, simulate
from simulator.scenario import Scenario, scenario_of

PASSES: tuple[Passes, ...] = ("forward", "backward", "both")
Track = Callable[[Iterable[str]], Iterable[str]]
TOKENS_PER_RANK = 64  # of the smaller workload that is executed numerically
RUNNABLE = 4096  # tokens up to which a workload runs at its own length
WORTH = 0.9  # of a schedule's time: a variant that takes less than that is listed, too
NEAR = 1.3  # times the fastest: what takes longer is never too close to call
ORDINARY = Scenario()
NARROW = 16  # head_dim of the smaller workload: plans do not depend on it
BLOCKWISE = " --trim blocks"  # how a variant's name ends


@dataclass(frozen=True, eq=False)
class Case:
    """One schedule of a comparison: its row, plans and prediction."""

    row: Row
    plans: Plans
    prediction: Prediction
    trim: Trim = "messages"

    def __repr__(self) -> str:
        return f"<Case {self.row.schedule}: {self.prediction!r}>"


@dataclass(frozen=True, eq=False)
class Comparison:
    """Schedules of one workload on one machine; printed, it is the table of `rows`.

    `cases`: the fastest first. `among`: the rows of all that were compared, where only the
    `fastest` were kept.
    """

    work: Workload
    ranks: int
    hardware: str
    pass_: Passes
    scenario: Scenario
    cases: tuple[Case, ...]
    refused: tuple[Refusal, ...] = ()
    among: tuple[Row, ...] = ()

    @property
    def rows(self) -> list[Row]:
        """A row of numbers per schedule that can run, the fastest first."""
        return sorted((case.row for case in self.cases), key=lambda row: row.makespan_s)

    def as_rows(self) -> list[dict[str, Any]]:
        """Rows for JSON: schedules that cannot run come last, with a `reason` and no numbers."""
        every: list[Row | Refusal] = [*self.rows, *self.refused]
        return [row.as_dict() for row in every]

    @property
    def recommendation(self) -> Recommendation:
        """The schedule to use, why, and those that are too close to it to call, of all compared."""
        return recommend(self.among or self.rows)

    @property
    def why(self) -> str:
        """One sentence that explains the spread from the numbers."""
        return why(self.rows)

    @property
    def title(self) -> str:
        """The workload, the machine, what is not as usual, and which schedules were left out."""
        said = asked(self.work, self.pass_, self.ranks, self.hardware, self.scenario)
        if self.among:
            said += f"; the fastest of {len(self.among)} schedules"
            said += ", and ring" * any(case.row.schedule == "ring" for case in self.cases)
        return said

    def fastest(self, most: int) -> "Comparison":
        """Returns at most so many of the schedules, for pictures: the fastest ones, and ring."""
        if len(self.cases) <= most:
            return self
        kept = sorted((row.schedule for row in self.rows), key="ring".__ne__)[:most]
        cases = tuple(case for case in self.cases if case.row.schedule in kept)
        return replace(self, cases=cases, among=tuple(self.rows))

    def __repr__(self) -> str:
        schedules, best = counted(len(self.cases), "schedule"), self.rows[0]
        return (
            f"<Comparison of {schedules}, {counted(self.ranks, 'rank')} of {self.hardware}:"
            f" {best.schedule} takes {seconds(best.makespan_s)}>"
        )

    def _repr_html_(self) -> str:
        """The table as HTML that takes its looks from the page around it."""
        lines = ["".join(f"<th>{label}</th>" for label in ("schedule", *LABELS))]
        for row in self.rows:
            numbers = "".join(f"<td>{cell.text}</td>" for cell in cells(row))
            lines.append(f"<th>{escape(row.schedule)}</th>{numbers}")
        for one in self.refused:
            name, wide = escape(one.schedule), f'<td colspan="{len(LABELS)}">'
            lines.append(f"<th>{name}</th>{wide}cannot run: {escape(one.reason)}</td>")
        caption = f"<caption>{escape(self.title)}</caption>"
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        return f"<table>{caption}{body}</table><p>{escape(self.recommendation.reason)}</p>"

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
            message = f"{library} is not installed: pip install {library}, or take as_rows()"
            raise RingloomError(message) from None

    def plot(self, axes: Any = None) -> Any:
        """Draw the time of each schedule in ms, busy and idle, on matplotlib axes; returns them."""
        axes, rows = new_axes(axes), self.rows
        names, times = (
            [in_lines(row.schedule) for row in rows],
            [1e3 * row.makespan_s for row in rows],
        )
        busy = [1e3 * row.makespan_s * (1 - row.idle_fraction) for row in rows]
        axes.barh(names, times, color="#b8c0c8", label="idle (mean of all ranks)")
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
        ran = any(row.exact is not None for row in self.rows)
        table = comparison_table(self.rows, ran, self.refused)
        console.print(self.title, table, self.recommendation.reason, sep="\n")
        return str(console.file.getvalue()).rstrip()  # type: ignore[attr-defined]


def asked(
    work: Workload, pass_: Passes, ranks: int, where: str = "", scenario: Scenario = ORDINARY
) -> str:
    """Returns a workload, its ranks, where and how they run: in words, all that is not as usual."""
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
            *scenario.words,
        ]
    )


def lengths(work: Workload) -> str:
    """Returns how many tokens there are, or queries and keys."""
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
    track: Track = iter,
) -> Comparison:
    """Plan, verify and simulate schedules, by default those that matter on the machine.

    These are the usual ones, and every degree of Ulysses that divides the heads; collectives know
    the machine's nodes unless a schedule says otherwise (`allgather:node=1`).
    Ring is always simulated, for the speedup. `scenario` says what differs from the ordinary, and
    `overlap=False` that transfers do not run beside compute. `variants`: a schedule is also listed
    with messages split block by block, where that takes at least a tenth less time. With
    `checked`, each schedule is also executed on `ranks` x 64 tokens in float64 and compared with
    dense attention. `memory`: bytes that a rank has for attention, by default the chip's; schedules
    that need more, or whose ranks or heads do not divide, are `refused`. `track` may wrap the
    names, to show progress. Raises PlanError for unknown schedules, and where none can run.
    """
    check_request(work, ranks, "compare(work, ranks, hardware)")
    if not isinstance(memory, Real | None):
        raise RingloomError(f"memory must be a number of bytes, not {memory!r:.40}")
    machine = find_hardware(hardware)
    what_if = scenario_of(scenario or ORDINARY)
    what_if = replace(what_if, overlap=what_if.overlap and overlap)
    names = asked_for(schedules, work, ranks, machine)
    room = machine["memory.capacity"] if memory is None else memory

    def case_of(name: str, trim: Trim = "messages") -> Case:
        plans = Plans.of(plan(name, work, ranks, pass_=pass_, trim=trim))
        shown = name if trim == "messages" else f"{name}{BLOCKWISE}"
        return case(shown, plans, simulate(plans, machine, what_if), trim)

    ring = case_of("ring")

    def variants_of(name: str) -> Iterator[Case | Refusal]:
        one = feasible(name, lambda name: ring if name == "ring" else case_of(name), room)
        yield one
        if variants and isinstance(one, Case) and work.mask != Full():
            split = feasible(name, partial(case_of, trim="blocks"), room)
            if isinstance(split, Case) and split.row.makespan_s <= WORTH * one.row.makespan_s:
                yield split

    tried = list(chain.from_iterable(map(variants_of, track(names))))
    cases = [one for one in tried if isinstance(one, Case)]
    refused = [one for one in tried if isinstance(one, Refusal)]
    if not cases:
        reasons = (f"{each.schedule}: {each.reason}" for each in refused)
        raise Reasons("\n".join(["none of these schedules can run", *reasons]))
    if checked and (small := smaller(work, ranks)):
        cases = [executed(one, small, ranks, pass_) for one in cases]
    cases = sorted((against(ring, one) for one in cases), key=lambda one: one.row.makespan_s)
    sure = with_intervals(cases, machine, what_if)
    shown = machine.name, pass_, what_if
    return Comparison(work, ranks, *shown, tuple(sure), tuple(refused))


def asked_for(
    schedules: Sequence[str] | None, work: Workload, ranks: int, machine: Hardware
) -> list[str]:
    """Returns each schedule once, as the machine runs it: those given, or those that matter."""
    named = comparable(work, ranks, machine.ranks_per_node) if schedules is None else schedules
    given = [] if isinstance(named, str) or not isinstance(named, Iterable) else list(named)
    if not given:
        raise PlanError(f"schedules must be a list of names, such as ['ring'], not {named!r}")
    names = list(dict.fromkeys(on_machine(name, ranks, machine) for name in given))
    for name in names:
        find_schedule(name)
    return names


def executed(one: Case, small: Workload, ranks: int, pass_: Passes) -> Case:
    """Returns a case with what its execution on a smaller workload showed."""
    name = one.row.schedule.removesuffix(BLOCKWISE)
    exact = check(plan(name, small, ranks, pass_=pass_, trim=one.trim)).exact
    return replace(one, row=replace(one.row, exact=exact, exact_seq=small.seq))


def on_machine(schedule: str, ranks: int, machine: Hardware) -> str:
    """Return a schedule, with node= where it has nodes and says none, and the machine has some."""
    recipe, given = find_schedule(schedule)
    node = machine.ranks_per_node
    if "node" not in recipe.parameters or "node" in given or not 1 < node < ranks or ranks % node:
        return schedule
    return f"{schedule}:node={node}"


def feasible(name: str, make: Callable[[str], Case], room: float) -> Case | Refusal:
    """Returns the case of a schedule, or why it cannot run with so many bytes on a rank."""
    try:
        one = make(name)
    except PlanError as error:
        return Refusal(name, str(error))
    lack = shortage(one.row.peak_bytes, room)
    return Refusal(name, lack) if lack else one


def with_intervals(cases: Sequence[Case], machine: Hardware, scenario: Scenario) -> Iterator[Case]:
    """Yields cases, the fastest first, with intervals of their times, and of those near its own."""
    best, fastest = cases[0], cases[0].row.makespan_s
    least = spread(best.plans, machine, scenario, fastest)
    for one in cases:
        took, over = one.row.makespan_s, None
        near = fastest < took <= NEAR * fastest
        own = least if one is best else spread(one.plans, machine, scenario, took, calibrated=near)
        if near:
            over = ratio_interval(machine.name, took / fastest, own, least)
        around = interval(machine, took, own)
        yield replace(one, row=replace(one.row, interval_s=around, ratio_interval=over))


def against(ring: Case, one: Case) -> Case:
    """Returns a case with its speedup over the ring."""
    speedup = ratio(ring.row.makespan_s, one.row.makespan_s)
    return replace(one, row=replace(one.row, speedup_vs_ring=speedup))


def case(name: str, plans: Plans, prediction: Prediction, trim: Trim = "messages") -> Case:
    """A schedule by itself: nothing is faster yet than its own lower bound, or than the ring."""
    first = plans.first
    total = work_of([first])
    numbers: dict[str, Any] = prediction.as_row()
    row = Row(
        schedule=name,
        speedup_vs_ring=1.0,
        imbalance=imbalance(first),
        busiest=_load(total, int(total.argmax())),
        lightest=_load(total, int(total.argmin())),
        verified_seq=first.workload.seq,
        **numbers,
    )
    return Case(row, plans, prediction, trim)


def smaller(work: Workload, ranks: int) -> Workload | None:
    """The same mask at a length that runs in a moment; None where the mask fixes the length."""
    dims = "head_dim", "v_head_dim"
    narrow = {dim: min(getattr(work, dim), NARROW) for dim in dims}
    if max(work.seq, work.kv_seq) <= RUNNABLE:
        return replace(work, dtype="float64", **narrow)
    seq = min(work.seq, ranks * TOKENS_PER_RANK)
    kv_seq = seq if work.kv_seq == work.seq else max(1, seq * work.kv_seq // work.seq)
    try:
        short = replace(work, seq=seq, kv_seq=min(kv_seq, RUNNABLE), dtype="float64")
        return replace(short, batch=1, **narrow)
    except PlanError:
        return None


def _load(total: NDArray[np.int64], rank: int) -> Load:
    return Load(rank, float(over_average(total)[rank]) if total.any() else 1.0)
