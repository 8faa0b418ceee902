"""Options shared by several commands: workload, plan, hardware and scenario."""

from collections.abc import Callable, Container, Iterable
from dataclasses import fields, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import click

from ringloom.cli.output import TYPED, Number, Whole, progress, working
from ringloom.comparison import PASSES, Comparison, compare
from ringloom.planner.disk import with_folder
from ringloom.planner.errors import PlanError, RingloomError, brief
from ringloom.planner.files import load
from ringloom.planner.given import tokens
from ringloom.planner.masks import forms as mask_forms
from ringloom.planner.passes.by_rows import Price, by_rows
from ringloom.planner.planning import PASS_PIPELINES, plan
from ringloom.planner.plans import Plans
from ringloom.planner.verify import verify
from ringloom.planner.workload import DTYPES, Workload
from ringloom.simulator.chrome_trace import trace_file
from ringloom.simulator.network.topology import forms as topology_forms
from ringloom.simulator.scenario import Scenario, scenario_file, value_of
from ringloom.trials import recipe_of

Function = TypeVar("Function", bound=Callable[..., Any])


class Written(click.ParamType[Any]):
    """A value in a given form, such as RANK=FACTOR; `read` raises ValueError for any other."""

    def __init__(self, form: str, example: str, read: Callable[[str], Any]) -> None:
        self.name, self.example, self.read = form, example, read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the value of a text; leaves a default that is not a text unchanged."""
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except RingloomError:
            raise
        except ValueError:
            self.fail(f"{brief(value)} is not {self.name} (example: {self.example})", param, ctx)


class File(click.Path):
    """A file to write in an existing folder; `check` raises RingloomError for invalid names."""

    def __init__(self, check: Callable[[str], object] = str) -> None:
        super().__init__(dir_okay=False, readable=False, writable=True)
        self.check = check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the file name; refuses folders and files that cannot be written."""
        self.check(value)
        return with_folder(str(super().convert(value, param, ctx)))


def _names(value: str) -> list[str]:
    if chosen := [name.strip() for name in value.split(",") if name.strip()]:
        return chosen
    raise click.UsageError("--schedules lists no schedule; example: --schedules ring,zigzag")


TOKENS = Written("tokens", "256k", tokens)
FILE, TRACE = File(), File(trace_file)
hardware_option = click.option(
    "--hardware", default="a100-nvlink", help="Preset name, or a TOML or JSON file."
)
time_limit_option = click.option(
    "--time-limit",
    type=Number(0),
    metavar="SECONDS",
    help="Start no further schedule after this time.  [default: none]",
)
memory_option = click.option(
    "--memory",
    "room",
    type=Number(0, min_open=True),
    callback=lambda _, __, gib: None if gib is None else gib * 2**30,
    metavar="GIB",
    help="Memory per rank for attention.  [default: the chip's]",
)
max_calls_option = click.option(
    "--max-calls",
    type=Whole(1),
    help="Maximum kernel calls per step in a dynamic JAX program.  [default: twice the plan's]",
)


def grouped(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Combines several options into one decorator, in this order."""

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


WORKLOAD: dict[str, tuple[Any, Any, str]] = {  # by name: type, default, help
    "ranks": (int, None, "Number of devices that share the sequence."),
    "seq": (TOKENS, None, "Number of query tokens: 4096, 256k or 1M."),
    "kv_seq": (TOKENS, None, "Number of key tokens; defaults to --seq."),
    "heads": (int, 32, "Number of query heads."),
    "kv_heads": (int, None, "Number of KV heads (GQA); defaults to --heads."),
    "head_dim": (int, 128, "Elements per head."),
    "v_head_dim": (int, None, "Elements per value head; defaults to --head-dim."),
    "sinks": (bool, False, "Add a learned attention-sink logit per query head."),
    "batch": (int, 1, "Batch size."),
    "mask": (str, "causal", f"Any of {mask_forms()}, combined with &, | and parentheses."),
    "dtype": (click.Choice(list(DTYPES)), "bfloat16", "Element type of the inputs."),
    "pass_": (click.Choice(PASSES), "forward", "Which passes to plan."),
    "tensor_parallel": (int, 1, "Chips of a node that share the heads of each rank."),
}


def workload_options(without: Container[str] = (), **usual: str) -> Callable[[Function], Function]:
    """Returns the workload options, `without` some; `usual` replaces defaults."""
    return grouped(
        *(
            click.option(
                *(f"--{name.rstrip('_').replace('_', '-')}", name),
                type=kind,
                is_flag=kind is bool,
                default=usual.get(name, default),
                help=meaning,
            )
            for name, (kind, default, meaning) in WORKLOAD.items()
            if name not in without
        )
    )


def source_options(**usual: str) -> Callable[[Function], Function]:
    """Returns the argument for a plan file or schedule, and the options that a schedule needs."""
    return grouped(
        click.argument("source", metavar="SCHEDULE|PLAN.json"),
        workload_options(**usual),
        click.option(
            "--trim",
            type=click.Choice(list(PASS_PIPELINES)),
            default="messages",
            help="Drop unused data by whole messages, or block by block.",
        ),
        click.option(
            "--by-rows",
            is_flag=True,
            help="Merge rows that see the same keys into one kernel call where that is cheaper.",
        ),
    )


scenario_options = grouped(
    click.option(
        "--scenario", help="TOML or JSON file of stragglers, slow links and other conditions."
    ),
    click.option(
        "--overlap/--no-overlap",
        default=None,
        help="Overlap transfers with compute.  [default: overlap]",
    ),
    click.option(
        *("--straggler", "speeds"),
        metavar="RANK=FACTOR",
        multiple=True,
        help="Relative speed of a rank: 3=0.5 runs rank 3 at half speed. Repeatable.",
    ),
    click.option(
        *("--slow-link", "links"),
        metavar="A-B=FACTOR",
        multiple=True,
        help="Fraction of a link's bandwidth: 6-7=0.1; 0 or cut removes the link. Repeatable.",
    ),
    click.option("--topology", help=f"Any of {topology_forms()}, or a JSON file of links."),
    click.option(
        "--placement",
        metavar="PLACES",
        help="Chip of each rank, in rank order: 0,2,1,3, or 0,8,16,24 on 32 chips.",
    ),
    click.option(
        *("--recv-buffers", "buffers"),
        metavar="N|plan",
        help="Receive buffers per tensor; plan: as many as the plan states.",
    ),
    click.option(
        *("--comm-sm-fraction", "share"),
        type=Number(0, 1, max_open=True),
        help="Fraction of the chip (SMs) that a transfer takes from compute.",
    ),
    click.option(
        *("--launch-latency", "launch"),
        type=Number(0),
        metavar="SECONDS",
        help="Latency of a kernel launch, in place of the hardware's.",
    ),
)


def comparison_options(most: int | None = None) -> Callable[[Function], Function]:
    """Returns the options of a comparison; `most`: schedules to keep when none are named."""
    usual = "standard set plus variants for this workload and hardware"
    if most:
        number = f"{most - 1} " if most > 2 else ""
        usual = f"the {number}fastest in compare, and ring"
    schedules_option = click.option(
        "--schedules",
        type=Written("names", "ring,zigzag", _names),
        multiple=True,
        callback=lambda _, __, lists: [*chain(*lists)] or None,
        help=f"Comma-separated schedule names.  [default: {usual}]",
    )
    return grouped(
        workload_options(), hardware_option, schedules_option, time_limit_option, scenario_options
    )


# ---- values of these options

WRITTEN = {  # scenario fields that are given as texts, and their options
    "speeds": "--straggler",
    "links": "--slow-link",
    "placement": "--placement",
    "buffers": "--recv-buffers",
}


def workload(given: dict[str, Any]) -> tuple[Workload, int]:
    """Returns the workload and the number of ranks that `workload_options` describe.

    With tensor parallelism, the heads are those of one tensor-parallel rank.
    """
    if missing := [f"--{name}" for name in ("ranks", "seq") if given[name] is None]:
        raise click.UsageError(f"missing {' and '.join(missing)}; example: --ranks 8 --seq 256k")
    sizes = {field.name: given.get(field.name) for field in fields(Workload)}
    work = Workload(**{name: size for name, size in sizes.items() if size is not None})
    if given["ranks"] < 1:
        raise PlanError(f"--ranks must be a positive integer, not {given['ranks']}")
    return work.split(given.get("tensor_parallel", 1)), given["ranks"]


def scenario_of(given: dict[str, Any]) -> Scenario:
    """Removes the values of `scenario_options` from `given` and returns them as a scenario."""
    file = given.pop("scenario")
    scenario = Scenario() if file is None else scenario_file(file)
    names = "overlap", "topology", "share", "launch", *WRITTEN
    changes = {name: given.pop(name) for name in names}
    asked = {name: value for name, value in changes.items() if value not in (None, ())}
    if (width := given.get("tensor_parallel", 1)) > 1:
        asked["tensor_parallel"] = width
    for name in (name for name in WRITTEN if name in asked):
        if name in ("speeds", "links") and getattr(scenario, name):
            raise click.UsageError(
                f"{file} also sets {name}: give them in the file or as options, not both"
            )
        text = asked[name] if isinstance(asked[name], str) else " ".join(asked[name])
        try:
            asked[name] = value_of(name, text)
        except RingloomError as error:
            raise click.UsageError(f"{WRITTEN[name]}: {error}") from None
    scenario = replace(scenario, **asked)
    if "share" in asked and not scenario.overlap:
        raise click.UsageError(
            "--comm-sm-fraction requires overlap: without it no compute runs during transfers"
        )
    return scenario


def compared(
    given: dict[str, Any], most: int | None = None, source: str | None = None, **more: Any
) -> Comparison:
    """Compares schedules by the values of `comparison_options`, at most `most` if none are named.

    `source`: a plan file that gives the workload; its plans are compared too.
    """
    if source:
        plans = plans_of(source, {name: given[name] for name in WORKLOAD})
        given["pass_"], more["plans"] = plans.pass_, plans
        work, ranks = plans.workload, plans.ranks
    else:
        work, ranks = workload(given)
    chosen = {name: given[name] for name in ("hardware", "schedules", "pass_", "time_limit")}
    bar = partial(progress, verb="comparing")
    made = compare(work, ranks, **chosen, scenario=scenario_of(given), track=bar, **more)
    return made.fastest(most) if most and given["schedules"] is None else made


def is_file(source: str) -> bool:
    """Returns True where a source names a plan file rather than a schedule."""
    return source.endswith((".json", ".json.gz")) or Path(source).is_file()


def plans_of(source: str, given: dict[str, Any], price: Price | None = None) -> Plans:
    """Returns the plans of a plan file or of a schedule; `given`: values of `source_options`.

    `price`: as in `by_rows`, decides where rows that see the same keys become one call. Raises
    click's UsageError if a plan file is combined with an option that describes a workload.
    """
    if not is_file(source):
        work, ranks = workload(given)
        recipe, trim = recipe_of(source), given.get("trim", "messages")
        trim = trim if recipe.trim == "messages" else recipe.trim
        with working("planning"):
            schedule = str(recipe.schedule)
            plans = Plans.of(plan(schedule, work, ranks, pass_=given["pass_"], trim=trim))
            grouped = recipe.by_rows or given.get("by_rows")
            return verify(by_rows(plans, price)) if grouped else plans
    refuse_typed(given, f"{source} already contains the workload")
    with working("reading and verifying"):
        return Plans.of(load(source))


def refuse_typed(given: Iterable[str], why: str) -> None:
    """Raises click's UsageError if one of these options was typed."""
    context = click.get_current_context()
    options = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    if typed := [name for name in given if context.get_parameter_source(name) is TYPED]:
        raise click.UsageError(f"{why}: omit {options[typed[0]]}")
