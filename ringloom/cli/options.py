"""Options shared by several commands: workload, plan, hardware and scenario."""

from collections.abc import Callable, Container, Iterable
from dataclasses import fields, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import click

from ringloom.cli.output import TYPED, Integer, Number, progress, working
from ringloom.comparison import PASSES, Comparison, compare
from ringloom.planner.disk import require_folder
from ringloom.planner.errors import PlanError, RingloomError, brief
from ringloom.planner.files import load
from ringloom.planner.given import parse_tokens
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


class ParsedText(click.ParamType[Any]):
    """A value in a text format, such as RANK=FACTOR; `read` raises ValueError for other texts."""

    def __init__(self, form: str, example: str, read: Callable[[str], Any]) -> None:
        self.name, self.example, self.read = form, example, read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the parsed value; returns a default that is not a text unchanged."""
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except RingloomError:
            raise
        except ValueError:
            self.fail(f"{brief(value)} is not {self.name} (example: {self.example})", param, ctx)


class File(click.Path):
    """An output file in an existing folder; `check` raises RingloomError for invalid names."""

    def __init__(self, check: Callable[[str], object] = str) -> None:
        super().__init__(dir_okay=False, readable=False, writable=True)
        self.check = check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the file name; refuses folders and files without write permission."""
        self.check(value)
        return require_folder(str(super().convert(value, param, ctx)))


def _names(value: str) -> list[str]:
    if names := [name.strip() for name in value.split(",") if name.strip()]:
        return names
    raise click.UsageError("--schedules lists no schedule; example: --schedules ring,zigzag")


TOKENS = ParsedText("tokens", "256k", parse_tokens)
FILE, TRACE = File(), File(trace_file)
hardware_option = click.option(
    "--hardware", default="a100-nvlink", help="Preset name, or a TOML or JSON file."
)
time_limit_option = click.option(
    "--time-limit",
    type=Number(0),
    metavar="SECONDS",
    help="Start no more schedules after this time.  [default: no limit]",
)
memory_option = click.option(
    "--memory",
    "memory_limit",
    type=Number(0, min_open=True),
    callback=lambda _, __, gib: None if gib is None else gib * 2**30,
    metavar="GIB",
    help="Memory per rank for attention.  [default: all of the chip's memory]",
)
max_calls_option = click.option(
    "--max-calls",
    type=Integer(1),
    help="Maximum kernel calls per step in a dynamic JAX program.  [default: twice the plan's]",
)


def grouped(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Combines options, which the help lists in this order, into one decorator."""

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


WORKLOAD: dict[str, tuple[Any, Any, str]] = {  # name: type, default, help
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
    "tensor_parallel": (int, 1, "Number of chips that split the heads of each rank."),
}


def workload_options(omit: Container[str] = (), **defaults: str) -> Callable[[Function], Function]:
    """Returns the workload options except `omit`; `defaults` replace the standard defaults."""
    return grouped(
        *(
            click.option(
                *(f"--{name.rstrip('_').replace('_', '-')}", name),
                type=kind,
                is_flag=kind is bool,
                default=defaults.get(name, default),
                help=help_text,
            )
            for name, (kind, default, help_text) in WORKLOAD.items()
            if name not in omit
        )
    )


def source_options(**defaults: str) -> Callable[[Function], Function]:
    """Returns the argument for a schedule or plan file, and the options that describe a plan.

    `defaults` replace the standard defaults of the workload.
    """
    return grouped(
        click.argument("source", metavar="SCHEDULE|PLAN.json"),
        workload_options(**defaults),
        click.option(
            "--trim",
            type=click.Choice(list(PASS_PIPELINES)),
            default="messages",
            help="Drop unused whole messages, or unused blocks of messages too.",
        ),
        click.option(
            "--by-rows",
            is_flag=True,
            help="Merge rows with the same keys into one kernel call if that is cheaper.",
        ),
    )


scenario_options = grouped(
    click.option(
        "--scenario", help="TOML or JSON file with stragglers, slow links and other conditions."
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
        help="Number of receive buffers per tensor; plan: the number in the plan.",
    ),
    click.option(
        *("--comm-sm-fraction", "share"),
        type=Number(0, 1, max_open=True),
        help="Fraction of the chip's SMs that transfers take from compute.",
    ),
    click.option(
        *("--launch-latency", "launch"),
        type=Number(0),
        metavar="SECONDS",
        help="Latency of a kernel launch.  [default: that of the hardware]",
    ),
)


def comparison_options(limit: int | None = None) -> Callable[[Function], Function]:
    """Returns the options of a comparison; `limit`: number of schedules if none are named."""
    default = "standard set plus variants for this workload and hardware"
    if limit:
        number = f"{limit - 1} " if limit > 2 else ""
        default = f"the {number}fastest in compare, and ring"
    schedules_option = click.option(
        "--schedules",
        type=ParsedText("names", "ring,zigzag", _names),
        multiple=True,
        callback=lambda _, __, lists: [*chain(*lists)] or None,
        help=f"Comma-separated schedule names.  [default: {default}]",
    )
    return grouped(
        workload_options(), hardware_option, schedules_option, time_limit_option, scenario_options
    )


# ---- values of these options

TEXT_OPTIONS = {  # scenario field that is given as text: its option
    "speeds": "--straggler",
    "links": "--slow-link",
    "placement": "--placement",
    "buffers": "--recv-buffers",
}


def workload(values: dict[str, Any]) -> tuple[Workload, int]:
    """Returns the workload and the number of ranks from the values of `workload_options`.

    With tensor parallelism, the workload has the heads of one tensor-parallel rank.
    """
    if missing := [f"--{name}" for name in ("ranks", "seq") if values[name] is None]:
        raise click.UsageError(f"missing {' and '.join(missing)}; example: --ranks 8 --seq 256k")
    sizes = {field.name: values.get(field.name) for field in fields(Workload)}
    work = Workload(**{name: size for name, size in sizes.items() if size is not None})
    if values["ranks"] < 1:
        raise PlanError(f"--ranks must be a positive integer, not {values['ranks']}")
    return work.split(values.get("tensor_parallel", 1)), values["ranks"]


def pop_scenario(values: dict[str, Any]) -> Scenario:
    """Removes the values of `scenario_options` and returns them as a scenario."""
    file = values.pop("scenario")
    scenario = Scenario() if file is None else scenario_file(file)
    names = "overlap", "topology", "share", "launch", *TEXT_OPTIONS
    changes = {name: values.pop(name) for name in names}
    changes = {name: value for name, value in changes.items() if value not in (None, ())}
    if (degree := values.get("tensor_parallel", 1)) > 1:
        changes["tensor_parallel"] = degree
    for name in (name for name in TEXT_OPTIONS if name in changes):
        if name in ("speeds", "links") and getattr(scenario, name):
            raise click.UsageError(
                f"{file} also sets {name}: give them in the file or as options, not both"
            )
        text = changes[name] if isinstance(changes[name], str) else " ".join(changes[name])
        try:
            changes[name] = value_of(name, text)
        except RingloomError as error:
            raise click.UsageError(f"{TEXT_OPTIONS[name]}: {error}") from None
    scenario = replace(scenario, **changes)
    if "share" in changes and not scenario.overlap:
        raise click.UsageError(
            "--comm-sm-fraction requires overlap: without it no compute runs during transfers"
        )
    return scenario


def compare_schedules(
    values: dict[str, Any], limit: int | None = None, source: str | None = None, **settings: Any
) -> Comparison:
    """Compares schedules by the values of `comparison_options`.

    `limit`: keeps the fastest schedules if none are named. `source`: a plan file with the workload,
    whose plans are compared too.
    """
    if source:
        plans = plans_of(source, {name: values[name] for name in WORKLOAD})
        values["pass_"], settings["plans"] = plans.pass_, plans
        work, ranks = plans.workload, plans.ranks
    else:
        work, ranks = workload(values)
    names = "hardware", "schedules", "pass_", "time_limit"
    settings |= {name: values[name] for name in names}
    settings |= {"scenario": pop_scenario(values), "track": partial(progress, verb="comparing")}
    comparison = compare(work, ranks, **settings)
    return comparison.fastest(limit) if limit and values["schedules"] is None else comparison


def is_file(source: str) -> bool:
    """Returns True if the source is a plan file rather than the name of a schedule."""
    return source.endswith((".json", ".json.gz")) or Path(source).is_file()


def plans_of(source: str, values: dict[str, Any], price: Price | None = None) -> Plans:
    """Returns the plans of a schedule or plan file; `values`: those of `source_options`.

    `price`: the cost function that decides where rows with the same keys become one call. Raises
    click's UsageError if a plan file is combined with an option that describes a workload.
    """
    if not is_file(source):
        work, ranks = workload(values)
        recipe, trim = recipe_of(source), values.get("trim", "messages")
        trim = trim if recipe.trim == "messages" else recipe.trim
        with working("planning"):
            schedule = str(recipe.schedule)
            plans = Plans.of(plan(schedule, work, ranks, pass_=values["pass_"], trim=trim))
            merges_rows = recipe.by_rows or values.get("by_rows")
            return verify(by_rows(plans, price)) if merges_rows else plans
    refuse_typed(values, f"{source} already contains the workload")
    with working("reading and verifying"):
        return Plans.of(load(source))


def refuse_typed(names: Iterable[str], reason: str) -> None:
    """Raises click's UsageError if one of these options was typed."""
    context = click.get_current_context()
    options = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    if typed := [name for name in names if context.get_parameter_source(name) is TYPED]:
        raise click.UsageError(f"{reason}: omit {options[typed[0]]}")
