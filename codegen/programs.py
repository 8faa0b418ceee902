"""Program   what a writer prints: verified plans, their loops or why there are none, the layout.

A writer, `codegen.torch.write` or `codegen.jax.write`, takes one and returns the text of a file.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from codegen.digest import digest
from codegen.layout import Layout, layout_of
from codegen.masks import boxes
from planner.errors import PlanError
from planner.ir import Plan
from planner.loops import recover
from planner.loops.form import Attend, Loops
from planner.plans import AnyPlans, Plans
from planner.workload import Workload

Target = Literal["torch", "jax"]
Platform = Literal["all", "tpu", "gpu", "cpu"]
TARGETS: tuple[Target, ...] = ("torch", "jax")
PLATFORMS: tuple[Platform, ...] = ("all", "tpu", "gpu", "cpu")


CHECKED = 128  # queries per rank that a self-check has where any length goes


@dataclass(frozen=True)
class Program:
    """One program to be written.

    `loops` has one form per pass, and is None for a table program; then `irregular` says why.
    `command` is what makes the file again, "" for plans from Python or from a file. `max_calls`
    bounds the tiles of a step in a JAX program with `dynamic` tables.
    """

    target: Target
    forward: Plan
    backward: Plan | None
    layout: Layout
    loops: tuple[Loops, ...] | None
    irregular: str = ""
    dynamic: bool = False
    layer: bool = False
    platform: Platform = "all"
    max_calls: int | None = None
    command: str = ""

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plan of each pass."""
        return (self.forward, self.backward) if self.backward else (self.forward,)

    @property
    def work(self) -> Workload:
        """The workload of both passes."""
        return self.forward.workload

    @property
    def ranks(self) -> int:
        """The number of ranks that run it."""
        return self.forward.ranks

    @property
    def name(self) -> str:
        """The name of the plan: to be printed in the header and in PLAN, nowhere else."""
        return self.forward.name

    @property
    def free(self) -> bool:
        """True if the program takes any length that `layout.multiple` divides."""
        return self.loops is not None and self.layout.multiple > 0

    @property
    def least(self) -> int:
        """The shortest length where any goes.

        A rank has two tokens at least where a rectangle leaves out the diagonal: of one token
        nothing would be left.
        """
        statements = [s for form in self.loops or () for s in form.statements]
        strict = any(isinstance(s, Attend) and s.kind == "strict" for s in statements)
        return max(self.layout.multiple, self.ranks * (1 + strict))

    @property
    def checked(self) -> int:
        """The number of queries of the self-check: few where any length goes."""
        many, few = self.layout.multiple, min(self.work.seq, CHECKED * self.ranks)
        return few // many * many if self.free else self.work.seq

    @property
    def any_heads(self) -> bool:
        """True if any number of heads goes, as no head is sharded."""
        sides = (self.forward.partition.q, self.forward.partition.kv)
        return all(len(side.slices) == 1 for side in sides)

    @property
    def signed(self) -> bool:
        """True if kernels take the scale's size alone: a mask scaled by 0 or less hides nothing."""
        return self.target == "torch" and self.work.softmax_scale <= 0

    @property
    def unequal(self) -> bool:
        """True if values have another dimension than keys."""
        return self.work.v_head_dim != self.work.head_dim

    @property
    def windows(self) -> bool:
        """True if the mask has bands with two sides."""
        reach = self.work.kv_seq - min(0, self.work.offset)  # no two positions are further apart
        return any(low > -reach for *_, low, _ in boxes(self.work, free=False))

    @property
    def marks(self) -> frozenset[str]:
        """The marks of the lines of parts that it has."""
        either = {
            ("windows", ""): self.windows,
            ("backward", ""): self.backward is not None,
            ("signed", ""): self.signed,
            ("unequal", "equal"): self.unequal,
            ("sinks", "sinkless"): self.work.sinks,
            ("given", "bound"): self.dynamic,
            ("whole", "heads"): self.any_heads,
            ("free", "fixed"): self.free,
        }
        return frozenset(pair[not holds] for pair, holds in either.items())

    @property
    def digest(self) -> str:
        """The hash of its plans."""
        return digest(self.plans)

    def as_tables(self, reason: str) -> "Program":
        """The same as a table program, because its loops cannot be printed."""
        return replace(self, loops=None, irregular=reason)


def program_of(
    given: AnyPlans, target: Target, *, dynamic: bool = False, layer: bool = False, **options: Any
) -> Program:
    """The program of verified plans, as loops where all passes are regular.

    `options`: other fields of a Program. Raises PlanError for a lone backward plan, for a pair that
    does not belong together, and for options that change nothing beside the others.
    """
    plans = Plans.of(given)
    _refuse_idle(target, dynamic or layer, dynamic, options)
    if dynamic or layer:
        kind = "decoder layers" if layer else "programs that are given tables"
        _refuse_unprinted(plans.workload, f"{target} {kind}")
    forward, backward = plans.forward, plans.backward
    if forward is None:
        raise PlanError("a program needs a forward plan, or a (forward, backward) pair of plans")
    if backward and forward.partition != backward.partition:
        raise PlanError("the forward and the backward plan differ in their partitions")
    try:
        if dynamic:
            raise PlanError("its tables are an argument")
        loops: tuple[Loops, ...] | None = tuple(recover(plan) for plan in plans)
        reason = ""
    except PlanError as error:
        loops, reason = None, str(error).removeprefix("irregular: ")
    made = target, forward, backward, layout_of(forward), loops, reason
    return Program(*made, dynamic, layer, **options)


def _refuse_idle(target: Target, by_tables: bool, dynamic: bool, options: dict[str, Any]) -> None:
    """Raises PlanError for options that a program of this kind has no use for."""
    if options.get("max_calls") is not None and not (dynamic and target == "jax"):
        raise PlanError("max_calls bounds a step of dynamic JAX programs: this is none")
    if options.get("platform", "all") != "all" and (by_tables or target != "jax"):
        raise PlanError(
            f"platform={options['platform']} leaves kernels out of JAX programs: torch programs,"
            " decoder layers and dynamic programs have none to leave out"
        )


def _refuse_unprinted(work: Workload, kind: str) -> None:
    """Raises PlanError for a workload that programs cannot compute yet."""
    dims = f"values of {work.v_head_dim} beside keys of {work.head_dim} elements"
    wide = work.v_head_dim != work.head_dim
    if lacking := [what for what, asked in ((dims, wide), ("sinks", work.sinks)) if asked]:
        raise PlanError(
            f"{kind} do not have {' and '.join(lacking)} yet: such a plan can be"
            " simulated, and run on the numpy backend"
        )
