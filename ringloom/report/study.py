"""A study: schedules of one workload on one machine, with all that its pictures are drawn from."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from planner.ir import Plan
from planner.workload import Workload
from ringloom.comparison import Case, Passes, Row, Track, cases, why
from ringloom.views.units import length
from simulator.hardware import Hardware
from simulator.prediction import Prediction


@dataclass(frozen=True, eq=False)
class Leg:
    """One pass of one schedule; its timeline begins `offset` seconds after the schedule does."""

    title: str
    plan: Plan
    found: Prediction
    offset: float


@dataclass(frozen=True, eq=False)
class Study:
    """What was asked, and each schedule with its plans and predictions."""

    work: Workload
    ranks: int
    hardware: str
    pass_: Passes
    overlap: bool
    cases: tuple[Case, ...]

    @property
    def rows(self) -> list[Row]:
        """The rows of the comparison."""
        return [case.row for case in self.cases]

    @property
    def finding(self) -> str:
        """One sentence that says what the numbers say."""
        return why(self.rows)

    @property
    def title(self) -> str:
        """What was compared, in words."""
        work, heads = self.work, f"{self.work.heads} heads of {self.work.head_dim}"
        if work.kv_heads != work.heads:
            heads = f"{work.heads}:{work.kv_heads} heads of {work.head_dim}"
        passes = "forward and backward" if self.pass_ == "both" else self.pass_
        taking_turns = "" if self.overlap else ", transfers and compute taking turns"
        return (
            f"{passes} of {length(work.seq)} tokens, {work.mask}, {heads}, {work.dtype},"
            f" {self.ranks} ranks of {self.hardware}{taking_turns}"
        )

    def legs(self) -> Iterator[tuple[Case, Leg]]:
        """Each pass of each schedule, in order."""
        return ((case, leg) for case in self.cases for leg in legs(case))


def study(
    work: Workload,
    ranks: int,
    hardware: Hardware,
    schedules: Sequence[str],
    *,
    pass_: Passes = "forward",
    overlap: bool = True,
    track: Track = iter,
) -> Study:
    """Plan, verify and simulate schedules, each once; raises PlanError as planning does."""
    names: Iterable[str] = list(dict.fromkeys(schedules))
    found = cases(work, ranks, hardware, list(names), pass_=pass_, overlap=overlap, track=track)
    return Study(work, ranks, hardware.name, pass_, overlap, tuple(found))


def legs(case: Case) -> tuple[Leg, ...]:
    """The passes of a case, one after the other."""
    return in_turn(case.row.schedule, case.passes)


def in_turn(schedule: str, passes: Sequence[tuple[Plan, Prediction]]) -> tuple[Leg, ...]:
    """The passes of a schedule, one after the other."""
    found, offset = list[Leg](), 0.0
    for plan, one in passes:
        title = schedule + (f" {plan.pass_}" if len(passes) > 1 else "")
        found.append(Leg(title, plan, one, offset))
        offset += one.makespan
    return tuple(found)
