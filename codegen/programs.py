"""Program   the input of a writer: verified plans with their loops, if they have any, and layout.

A writer, `ringloom.codegen.torch.write` or `ringloom.codegen.jax.write`, takes a Program and
returns the text of a file.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypedDict, TypeVar, Unpack

from ringloom.codegen import ir
from ringloom.codegen.check import ProgramError, check
from ringloom.codegen.frame.layout import Layout, layout_of
from ringloom.codegen.frame.masks import boxes
from ringloom.codegen.lower import lower
from ringloom.codegen.lowering.keeping import kept_exchanges
from ringloom.codegen.passes import optimize
from ringloom.codegen.tracing import prepare_for_tracing
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
CHECKED = 128  # queries per rank in the self-check of a program that accepts any length
Choice = TypeVar("Choice", bound=str)


class Options(TypedDict, total=False):
    """The options of a program.

    dynamic     the program takes tables as an argument, for masks that change with every batch
    platform    the kernels of a JAX program: all, tpu, gpu or cpu
    max_calls   the maximum number of tiles per step of a dynamic JAX program
    command     the command that generates the file, for the header; "" if there is none
    """

    dynamic: bool
    platform: str
    max_calls: int | None
    command: str


@dataclass(frozen=True)
class Program:
    """A program to be written.

    `passes` are the loops of each pass, and `lowered` their checked programs. Both are None for a
    table program; `irregular` then gives the reason. The other fields are those of `Options`.
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
        """The number of ranks that run the program."""
        return self.forward.ranks

    @property
    def any_length(self) -> bool:
        """True if the program accepts any length divisible by `layout.multiple`."""
        return self.loops is not None and self.layout.multiple > 0

    @property
    def min_length(self) -> int:
        """The shortest length of a program that accepts any length.

        If a rectangle excludes the diagonal, each rank needs two tokens, as one would have no pair.
        """
        ops = [op for program in self.lowered or () for op in ir.walk(program.ops)]
        strict = any(isinstance(op, ir.Attend) and op.kind == "strict" for op in ops)
        return max(self.layout.multiple, self.ranks * (1 + strict))

    @property
    def token_stride(self) -> int:
        """The distance between the tokens of a piece; raises PlanError if pieces differ."""
        sides = self.forward.partition
        runs = [run for side in (sides.q, sides.kv) for chunk in side.chunks for run in chunk]
        step, *others = {run.step for run in runs if len(run) > 1} or {1}
        if others:
            raise PlanError("the distance between tokens differs from piece to piece")
        return step

    @property
    def check_tokens(self) -> int:
        """The number of queries in the self-check, reduced if the program accepts any length."""
        if self.any_plan:
            return CHECKED // 2 * self.ranks
        multiple, limit = self.layout.multiple, min(self.work.seq, CHECKED * self.ranks)
        return limit // multiple * multiple if self.any_length else self.work.seq

    @property
    def any_heads(self) -> bool:
        """True if the program accepts any number of heads, because heads are not sharded."""
        sides = (self.forward.partition.q, self.forward.partition.kv)
        return all(len(side.slices) == 1 for side in sides)

    @property
    def any_plan(self) -> bool:
        """True if the program takes any plan for its ranks and heads, as tables."""
        return self.dynamic and self.target == "torch"

    @property
    def needs_sign(self) -> bool:
        """True if kernels get only the size of the scale, as a scale <= 0 would undo the mask."""
        return self.target == "torch" and self.work.softmax_scale <= 0

    @property
    def unequal_pieces(self) -> bool:
        """True if pieces of keys and pieces of queries have different numbers of tokens."""
        sides = self.forward.partition
        return int(sides.q.sizes.max()) != int(sides.kv.sizes.max())

    @property
    def unequal_head_dims(self) -> bool:
        """True if values and keys have different head dimensions."""
        return self.work.v_head_dim != self.work.head_dim

    @property
    def interface(self) -> list[str]:
        """The public names of the program."""
        names = ["PLAN", "positions", "shard", "unshard", "attention", "main"]
        names += ["kv_positions"] * (self.any_plan or self.layout.separate_kv)
        return names + ["load", "example" if self.any_plan else "make_tables"] * self.dynamic

    @property
    def choices(self) -> dict[str, bool]:
        """The branches that the program takes in parts, by their capital names."""
        work, backward = self.work, self.backward
        reach = work.kv_seq - min(0, work.offset)  # the largest distance between two positions
        sent = {t for _, move in backward.moves() for t in move.tensors} if backward else set()
        by_tables = self.dynamic or (self.loops is None and self.target == "jax")
        return {
            "WINDOWS": self.dynamic
            or any(low > -reach for *_, low, _ in boxes(work, any_length=False)),
            "BACKWARD": backward is not None or self.any_plan,
            "SIGNED": self.needs_sign,
            "UNEQUAL": self.unequal_head_dims,
            "SINKS": work.sinks,
            "DYNAMIC": self.dynamic,
            "APART": self.layout.separate_kv,
            "PADDED": self.target == "jax" and not self.layout.equal,
            "ANY_HEADS": self.any_heads,
            "GROUPED": self.any_heads or self.dynamic or work.heads != work.kv_heads,
            "ANY_LENGTH": self.any_length,
            "LOOPS": self.loops is not None,
            "ALL_PLATFORMS": self.platform == "all",
            "ON_CPU": self.platform == "cpu",
            "KEEPING": self.dynamic or bool(backward and backward.start),
            "STATS": by_tables or "STATS" in sent,
        }

    def as_tables(self, reason: str) -> "Program":
        """Returns this program as a table program; `reason`: why its loops cannot be printed."""
        return replace(self, passes=None, lowered=None, irregular=reason)


def lower_passes(
    passes: Sequence[Expansion], target: Target = "torch", padded: bool = False
) -> tuple[ir.Program, ...]:
    """Lowers the loops of each pass to a checked program; `padded` as in `lower`.

    Raises PlanError for loops that no ops can express, and ProgramError for a defect in lowering.
    """
    if len({rows.loops.mesh for rows in passes if len(rows.loops.mesh) > 1}) > 1:
        raise PlanError("the two passes arrange the ranks in different meshes")
    kept, held, programs = kept_exchanges(passes), dict[ir.Register, Ints](), list[ir.Program]()
    for rows in passes:
        program = lower(rows, kept, padded)
        traces = target == "jax"
        program = prepare_for_tracing(program, rows, held) if traces else optimize(program)
        programs.append(program)
        held = check(program, rows, held)
    return tuple(programs)


def program_of(any_plans: AnyPlans, target: str, **options: Unpack[Options]) -> Program:
    """Returns the program of verified plans, with loops if all passes are regular.

    Raises PlanError for an unknown target or platform, a lone backward plan, and options that do
    not apply; raises ProgramError if the lowered loops do not compute their plan.
    """
    plans, target = Plans.of(any_plans), _one_of(target, "target", TARGETS)
    dynamic = options.get("dynamic")
    _refuse_unused_options(target, options)
    if dynamic:
        _refuse_unsupported(plans.workload, f"{target} programs that take tables")
    forward, backward = plans.forward, plans.backward
    if forward is None:
        raise PlanError("a program needs a forward plan, or a (forward, backward) pair of plans")
    layout = layout_of(forward)
    passes, programs, reason = None, None, "its tables are an argument"
    try:
        if not dynamic:
            passes = tuple(recover_expansion(plan) for plan in plans)
            padded = target == "jax" and layout.pads_pieces(forward)
            programs = lower_passes(passes, target, padded)
    except ProgramError:
        raise
    except PlanError as error:
        passes = None
        reason = str(error)
    return Program(target, forward, backward, layout, passes, programs, reason, **options)


def _refuse_unused_options(target: Target, options: Options) -> None:
    """Raises PlanError for options that do not apply to a program of this kind."""
    platform = _one_of(options.get("platform", "all"), "platform", PLATFORMS)
    dynamic = options.get("dynamic")
    if options.get("max_calls") is not None and not (dynamic and target == "jax"):
        raise PlanError("max_calls is only available for dynamic JAX programs")
    if platform != "all" and (dynamic or target != "jax"):
        raise PlanError(
            f"platform={platform} is only available for JAX programs that are not dynamic"
        )


def _one_of(name: str, kind: str, choices: Sequence[Choice]) -> Choice:
    """Returns the choice with a given name; raises PlanError if there is none."""
    for choice in choices:
        if choice == name:
            return choice
    raise PlanError(unknown(kind, name, choices))


def _refuse_unsupported(work: Workload, kind: str) -> None:
    """Raises PlanError for a workload that programs of this kind do not support yet."""
    features = {
        f"v_head_dim {work.v_head_dim} with head_dim {work.head_dim}": (
            work.v_head_dim != work.head_dim
        ),
        "sinks": work.sinks,
    }
    if missing := [feature for feature, wanted in features.items() if wanted]:
        raise PlanError(f"{kind} do not support {' and '.join(missing)} yet; ordinary programs do")
