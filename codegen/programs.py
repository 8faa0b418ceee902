"""Program   what a writer prints: verified plans, their loops or why there are none, the layout.

A writer, `ringloom.codegen.torch.write` or `ringloom.codegen.jax.write`, takes one and returns the
text of a file.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypedDict, TypeVar, Unpack

from ringloom.codegen import ir
from ringloom.codegen.check import ProgramError, check
from ringloom.codegen.frame.layout import Layout, layout_of
from ringloom.codegen.frame.masks import boxes
from ringloom.codegen.lower import lower
from ringloom.codegen.lowering.keeping import kept
from ringloom.codegen.passes import optimized
from ringloom.codegen.tracing import traced
from ringloom.planner.errors import PlanError, unknown
from ringloom.planner.ir import Plan
from ringloom.planner.loops import recover_expansion
from ringloom.planner.loops.expand import Expansion
from ringloom.planner.loops.form import Ints, Loops
from ringloom.planner.plans import AnyPlans, Plans
from ringloom.planner.workload import Workload

Target = Literal["torch", "jax"]
TARGETS: tuple[Target, ...] = ("torch", "jax")
PLATFORMS = ("all", "tpu", "gpu", "cpu")
Choice = TypeVar("Choice", bound=str)


CHECKED = 128  # queries per rank that a self-check has where any length goes


class Options(TypedDict, total=False):
    """The form of a program, beside its plans and its target.

    dynamic     its tables are an argument, for masks that change with every batch
    platform    the only kernels of a JAX program: all, tpu, gpu or cpu
    max_calls   bounds the tiles of a step of a JAX program with dynamic tables
    command     what makes the file again, for the header; "" for plans from Python or from a file
    """

    dynamic: bool
    platform: str
    max_calls: int | None
    command: str


@dataclass(frozen=True)
class Program:
    """One program to be written.

    `passes` has the loops of each pass and `lowered` what they are lowered to, checked. Both are
    None for a table program; then `irregular` says why. The other fields are those of `Options`.
    """

    target: Target
    forward: Plan
    backward: Plan | None
    layout: Layout
    passes: tuple[Expansion, ...] | None
    lowered: tuple[ir.Program, ...] | None = None
    irregular: str = ""
    dynamic: bool = False
    platform: str = "all"
    max_calls: int | None = None
    command: str = ""

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plan of each pass."""
        return (self.forward, self.backward) if self.backward else (self.forward,)

    @property
    def loops(self) -> tuple[Loops, ...] | None:
        """The loops of each pass; None for a table program."""
        return tuple(rows.loops for rows in self.passes) if self.passes is not None else None

    @property
    def work(self) -> Workload:
        """The workload of both passes."""
        return self.forward.workload

    @property
    def ranks(self) -> int:
        """The number of ranks that run it."""
        return self.forward.ranks

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
        ops = [op for one in self.lowered or () for op in ir.walk(one.ops)]
        strict = any(isinstance(op, ir.Attend) and op.kind == "strict" for op in ops)
        return max(self.layout.multiple, self.ranks * (1 + strict))

    @property
    def step(self) -> int:
        """The distance between the tokens of a piece; PlanError unless it is the same in all."""
        sides = self.forward.partition
        runs = [run for side in (sides.q, sides.kv) for chunk in side.chunks for run in chunk]
        step, *others = {run.step for run in runs if len(run) > 1} or {1}
        if others:
            raise PlanError("tokens of different pieces lie at different distances")
        return step

    @property
    def checked(self) -> int:
        """The number of queries of the self-check: few where any length goes."""
        if self.any_plan:
            return CHECKED // 2 * self.ranks
        many, few = self.layout.multiple, min(self.work.seq, CHECKED * self.ranks)
        return few // many * many if self.free else self.work.seq

    @property
    def any_heads(self) -> bool:
        """True if any number of heads goes, as no head is sharded."""
        sides = (self.forward.partition.q, self.forward.partition.kv)
        return all(len(side.slices) == 1 for side in sides)

    @property
    def any_plan(self) -> bool:
        """True if it takes any plan of its ranks and heads, as tables."""
        return self.dynamic and self.target == "torch"

    @property
    def signed(self) -> bool:
        """True if kernels take the scale's size alone: a mask scaled by 0 or less hides nothing."""
        return self.target == "torch" and self.work.softmax_scale <= 0

    @property
    def keys_cut_apart(self) -> bool:
        """True if pieces of keys have other numbers of tokens than pieces of queries."""
        sides = self.forward.partition
        return int(sides.q.sizes.max()) != int(sides.kv.sizes.max())

    @property
    def unequal(self) -> bool:
        """True if values have another dimension than keys."""
        return self.work.v_head_dim != self.work.head_dim

    @property
    def interface(self) -> list[str]:
        """The names that it is used by."""
        names = ["PLAN", "positions", "shard", "unshard", "attention", "main"]
        names += ["kv_positions"] * (self.any_plan or self.layout.apart)
        return names + ["load", "example" if self.any_plan else "make_tables"] * self.dynamic

    @property
    def choices(self) -> dict[str, bool]:
        """The choices that it makes in parts, by their capital names."""
        work, backward = self.work, self.backward
        reach = work.kv_seq - min(0, work.offset)  # no two positions are further apart
        sent = {t for _, move in backward.moves() for t in move.tensors} if backward else set()
        by_tables = self.dynamic or (self.loops is None and self.target == "jax")
        return {
            "WINDOWS": self.dynamic or any(low > -reach for *_, low, _ in boxes(work, free=False)),
            "BACKWARD": backward is not None or self.any_plan,
            "SIGNED": self.signed,
            "UNEQUAL": self.unequal,
            "SINKS": work.sinks,
            "DYNAMIC": self.dynamic,
            "APART": self.layout.apart,
            "PADDED": self.target == "jax" and not self.layout.equal,
            "ANY_HEADS": self.any_heads,
            "GROUPED": self.any_heads or self.dynamic or work.heads != work.kv_heads,
            "ANY_LENGTH": self.free,
            "LOOPS": self.loops is not None,
            "ALL_PLATFORMS": self.platform == "all",
            "ON_CPU": self.platform == "cpu",
            "KEEPING": self.dynamic or bool(backward and backward.start),
            "STATS": by_tables or "STATS" in sent,
        }

    def as_tables(self, reason: str) -> "Program":
        """The same as a table program, because its loops cannot be printed."""
        return replace(self, passes=None, lowered=None, irregular=reason)


def lowered(
    passes: Sequence[Expansion], target: Target = "torch", padded: bool = False
) -> tuple[ir.Program, ...]:
    """The programs that the loops of each pass are lowered to, checked; `padded` as in `lower`.

    Raises PlanError where there is no op for them, and ProgramError for a defect of the lowering.
    """
    if len({rows.loops.mesh for rows in passes if len(rows.loops.mesh) > 1}) > 1:
        raise PlanError("the two passes arrange the ranks in different meshes")
    keeping, held, made = kept(passes), dict[ir.Register, Ints](), list[ir.Program]()
    for rows in passes:
        program = lower(rows, keeping, padded)
        program = traced(program, rows, held) if target == "jax" else optimized(program)
        made.append(program)
        held = check(program, rows, held)
    return tuple(made)


def program_of(given: AnyPlans, target: str, **options: Unpack[Options]) -> Program:
    """The program of verified plans, as loops where all passes are regular.

    Raises PlanError for an unknown target or platform, for a lone backward plan, and for options
    that change nothing beside the others; ProgramError where loops are lowered to something else
    than their plan.
    """
    plans, target = Plans.of(given), _one_of(target, "target", TARGETS)
    dynamic = options.get("dynamic")
    _refuse_idle(target, options)
    if dynamic:
        _refuse_unprinted(plans.workload, f"{target} programs that are given tables")
    forward, backward = plans.forward, plans.backward
    if forward is None:
        raise PlanError("a program needs a forward plan, or a (forward, backward) pair of plans")
    layout = layout_of(forward)
    passes, ops, reason = None, None, "its tables are an argument"
    try:
        if not dynamic:
            passes = tuple(recover_expansion(plan) for plan in plans)
            ops = lowered(passes, target, target == "jax" and layout.pads_pieces(forward))
    except ProgramError:
        raise
    except PlanError as error:
        passes = None
        reason = str(error)
    return Program(target, forward, backward, layout, passes, ops, reason, **options)


def _refuse_idle(target: Target, options: Options) -> None:
    """Raises PlanError for options that a program of this kind has no use for."""
    platform = _one_of(options.get("platform", "all"), "platform", PLATFORMS)
    dynamic = options.get("dynamic")
    if options.get("max_calls") is not None and not (dynamic and target == "jax"):
        raise PlanError("max_calls bounds a step of dynamic JAX programs: this is none")
    if platform != "all" and (dynamic or target != "jax"):
        raise PlanError(
            f"platform={platform} leaves kernels out of JAX programs: torch programs and dynamic"
            " programs have none to leave out"
        )


def _one_of(given: str, kind: str, choices: Sequence[Choice]) -> Choice:
    """The choice that was given; PlanError where it is none."""
    for choice in choices:
        if choice == given:
            return choice
    raise PlanError(unknown(kind, given, choices))


def _refuse_unprinted(work: Workload, kind: str) -> None:
    """Raises PlanError for a workload that programs of this kind do not support yet."""
    dims = f"values of {work.v_head_dim} beside keys of {work.head_dim} elements"
    wide = work.v_head_dim != work.head_dim
    if lacking := [what for what, asked in ((dims, wide), ("sinks", work.sinks)) if asked]:
        raise PlanError(f"{kind} do not have {' and '.join(lacking)} yet: ordinary programs do")
