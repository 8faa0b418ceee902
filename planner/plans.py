"""Plans   a forward plan, a backward plan, or both plans of one workload."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, Union

from ringloom.planner.errors import PlanError, brief
from ringloom.planner.ir import Pass, Plan
from ringloom.planner.workload import Workload

Passes: TypeAlias = Pass | Literal["both"]
AnyPlans: TypeAlias = Union[Plan, "Plans", tuple[Plan, Plan]]  # the argument of `Plans.of`


def one_plan(plan: Plan, function: str) -> Plan:
    """Returns the given plan; raises PlanError for anything else, such as a pair."""
    if isinstance(plan, Plan):
        return plan
    raise PlanError(f"{function} takes one plan, such as pair.forward, not {brief(plan)}")


@dataclass(frozen=True, slots=True)
class Plans:
    """A forward plan, a backward plan, or two plans, which unpack as `forward, backward = plans`.

    Raises PlanError if both plans are missing, if a plan is of the other pass, and if the plans
    differ in workload or ranks. Does not verify the plans: see
    `ringloom.planner.verify.ensure_verified`.
    """

    forward: Plan | None = None
    backward: Plan | None = None

    def __repr__(self) -> str:
        passes = " and ".join(plan.pass_ for plan in self)
        return f"<Plans {self.name}: {passes}, {self.ranks} ranks>"

    def __post_init__(self) -> None:
        kinds = tuple(getattr(plan, "pass_", type(plan).__name__) for plan in self)
        fields = zip(("forward", "backward"), (self.forward, self.backward), strict=True)
        if not kinds or kinds != tuple(pass_ for pass_, plan in fields if plan is not None):
            raise PlanError(f"a pair must be a forward and a backward plan, not {kinds}")
        first, last = self.first, self[-1]
        if first.workload != last.workload:
            raise PlanError(
                f"both plans need the same workload, not {first.workload} and {last.workload}"
            )
        if first.ranks != last.ranks:
            raise PlanError(
                f"both plans need the same number of ranks, not {first.ranks} and {last.ranks}"
            )

    @classmethod
    def of(cls, plans: AnyPlans) -> "Plans":
        """Returns a plan, a tuple of two plans, or Plans as Plans."""
        match plans:
            case Plans():
                return plans
            case Plan(pass_="forward"):
                return cls(forward=plans)
            case Plan():
                return cls(backward=plans)
            case (forward, backward):
                return cls(forward, backward)
        raise PlanError(f"expected a plan or a (forward, backward) pair, not {brief(plans)}")

    def __iter__(self) -> Iterator[Plan]:
        """Yields the forward plan, then the backward plan, if present."""
        return (plan for plan in (self.forward, self.backward) if plan is not None)

    def __len__(self) -> int:
        """Returns the number of plans, 1 or 2."""
        return sum(1 for _ in self)

    def __getitem__(self, number: int) -> Plan:
        """Returns one plan by its index in unpacking order."""
        return tuple(self)[number]

    @property
    def first(self) -> Plan:
        """The forward plan if present, else the backward plan."""
        return next(iter(self))

    @property
    def pass_(self) -> Passes:
        """The pass of the only plan, or "both"."""
        return self.first.pass_ if len(self) == 1 else "both"

    @property
    def workload(self) -> Workload:
        """The workload of all plans."""
        return self.first.workload

    @property
    def ranks(self) -> int:
        """The number of ranks of all plans."""
        return self.first.ranks

    @property
    def name(self) -> str:
        """The name of the schedule."""
        return self.first.name
