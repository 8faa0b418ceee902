"""Options that commands share: the workload, the source of a plan, the hardware, a scenario."""

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
from ringloom.planner.planning import TRIMS, plan
from ringloom.planner.plans import Plans
from ringloom.planner.verify import verify
from ringloom.planner.workload import DTYPES, Workload
from ringloom.simulator.chrome_trace import trace_file
from ringloom.simulator.network.topology import forms as topology_forms
from ringloom.simulator.scenario import Scenario, scenario_file, value_of
from ringloom.trials import recipe_of

Function = TypeVar("Function", bound=Callable[..., Any])


class Written(click.ParamType[Any]):
    """A value in a form of its own, such as RANK=FACTOR; `read` raises ValueError for others."""

    def __init__(self, form: str, example: str, read: Callable[[str], Any]) -> None:
        self.name, self.example, self.read = form, example, read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns what the text means; a default that is no text is taken as it is."""
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except RingloomError:
            raise
        except ValueError:
            self.fail(f"{brief(value)} is not {self.name}, such as {self.example}", param, ctx)


class File(click.Path):
    """A file to write, in a folder that exists; `check` raises RingloomError for wrong names."""

    def __init__(self, check: Callable[[str], object] = str) -> None:
        super().__init__(dir_okay=False, readable=False, writable=True)
        self.check = check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the name; refuses folders, and files that cannot be written."""
        self.check(value)
        return with_folder(str(super().convert(value, param, ctx)))


def _names(value: str) -> list[str]:
    if chosen := [name.strip() for name in value.split(",") if name.strip()]:
        return chosen
    raise click.UsageError("--schedules names no schedule: write --schedules ring,zigzag, say")


TOKENS = Written("tokens", "256k", tokens)
FILE, TRACE = File(), File(trace_file)
hardware_option = click.option(
    "--hardware", default="a100-nvlink", help="A preset or a TOML/JSON file."
)
time_limit_option = click.option(
    "--time-limit",
    type=Number(0),
    metavar="SECONDS",
    help="Begin no schedule later than that.  [default: none]",
)
memory_option = click.option(
    "--memory",
    "room",
    type=Number(0, min_open=True),
    callback=lambda _, __, gib: None if gib is None else gib * 2**30,
    metavar="GIB",
    help="GiB that a rank has for attention.  [default: the chip's]",
)
max_calls_option = click.option(
    "--max-calls",
    type=Whole(1),
    help="Most tiles per step of a dynamic JAX program.  [default: twice the plan's]",
)


def grouped(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Several options as one decorator, in this order."""

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


WORKLOAD: dict[str, tuple[Any, Any, str]] = {  # by name: type, what holds without it, meaning
    "ranks": (int, None, "Devices that share the sequence."),
    "seq": (TOKENS, None, "Query tokens, such as 4096, 256k or 1M."),
    "kv_seq": (TOKENS, None, "Key tokens; defaults to --seq."),
    "heads": (int, 32, "Query heads."),
    "kv_heads": (int, None, "Number of KV heads (GQA); defaults to --heads."),
    "head_dim": (int, 128, "Elements of a head."),
    "v_head_dim": (int, None, "Elements of a value head; defaults to --head-dim."),
    "sinks": (bool, False, "One learned logit per head beside the keys'."),
    "batch": (int, 1, "Sequences in the batch."),
    "mask": (str, "causal", f"{mask_forms()}; joined by & and |, with parentheses."),
    "dtype": (click.Choice(list(DTYPES)), "bfloat16", "Element type of the inputs."),
    "pass_": (click.Choice(PASSES), "forward", "Passes to plan."),
    "tensor_parallel": (int, 1, "Chips of a node that share the heads of each rank."),
}


def workload_options(without: Container[str] = (), **usual: str) -> Callable[[Function], Function]:
    """The options of a workload, `without` some of them, with what is `usual` for one command."""
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
    """A plan file, or a schedule with the options of its workload and of what is dropped."""
    return grouped(
        click.argument("source", metavar="SCHEDULE|PLAN.json"),
        workload_options(**usual),
        click.option(
            "--trim",
            type=click.Choice(list(TRIMS)),
            default="messages",
            help="Drop unused messages whole, or block by block.",
        ),
        click.option(
            "--by-rows",
            is_flag=True,
            help="Attend rows that see the same keys by one call, where that is cheaper.",
        ),
    )


scenario_options = grouped(
    click.option("--scenario", help="A TOML or JSON file of stragglers, slow links and so on."),
    click.option(
        "--overlap/--no-overlap",
        default=None,
        help="Overlap transfers with compute.  [default: overlap]",
    ),
    click.option(
        *("--straggler", "speeds"),
        metavar="RANK=FACTOR",
        multiple=True,
        help="A slow rank and its speed: 3=0.5 is half as fast; may be repeated.",
    ),
    click.option(
        *("--slow-link", "links"),
        metavar="A-B=FACTOR",
        multiple=True,
        help="A link and its share of the usual bandwidth, such as 6-7=0.1; 0 or cut cuts it.",
    ),
    click.option("--topology", help=f"{topology_forms()} or a JSON file of links."),
    click.option(
        "--placement",
        metavar="PLACES",
        help="Place of each rank among the chips: 0,2,1,3, or 0,8,16,24 of 32.",
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
    """The options of a comparison; `most`: how many schedules are kept where none are named."""
    usual = "the usual ones, in all variants that matter on the hardware"
    if most:
        number = f"{most - 1} " if most > 2 else ""
        usual = f"the {number}fastest that compare lists, and ring"
    schedules_option = click.option(
        "--schedules",
        type=Written("names", "ring,zigzag", _names),
        multiple=True,
        callback=lambda _, __, lists: [*chain(*lists)] or None,
        help=f"Names of schedules, separated by commas.  [default: {usual}]",
    )
    return grouped(
        workload_options(), hardware_option, schedules_option, time_limit_option, scenario_options
    )


# ---- their values

WRITTEN = {  # options of values of a scenario that are texts
    "speeds": "--straggler",
    "links": "--slow-link",
    "placement": "--placement",
    "buffers": "--recv-buffers",
}


def workload(given: dict[str, Any]) -> tuple[Workload, int]:
    """The workload and the ranks that the options of `workload_options` describe.

    With tensor parallelism, the heads are those of one tensor-parallel rank.
    """
    if missing := [f"--{name}" for name in ("ranks", "seq") if given[name] is None]:
        raise click.UsageError(f"missing {' and '.join(missing)}: write --ranks 8 --seq 256k, say")
    sizes = {field.name: given.get(field.name) for field in fields(Workload)}
    work = Workload(**{name: size for name, size in sizes.items() if size is not None})
    if given["ranks"] < 1:
        raise PlanError(f"ranks must be a whole number from 1 up, not {given['ranks']}")
    return work.split(given.get("tensor_parallel", 1)), given["ranks"]


def scenario_of(given: dict[str, Any]) -> Scenario:
    """Takes the values of `scenario_options` out of `given`, and returns the scenario."""
    file = given.pop("scenario")
    scenario = Scenario() if file is None else scenario_file(file)
    names = "overlap", "topology", "share", "launch", *WRITTEN
    changes = {name: given.pop(name) for name in names}
    asked = {name: value for name, value in changes.items() if value not in (None, ())}
    if (width := given.get("tensor_parallel", 1)) > 1:
        asked["tensor_parallel"] = width
    for name in (name for name in WRITTEN if name in asked):
        if name in ("speeds", "links") and getattr(scenario, name):
            raise click.UsageError(f"{file} has {name} already: name all of them in one place")
        text = asked[name] if isinstance(asked[name], str) else " ".join(asked[name])
        try:
            asked[name] = value_of(name, text)
        except RingloomError as error:
            raise click.UsageError(f"{WRITTEN[name]}: {error}") from None
    scenario = replace(scenario, **asked)
    if "share" in asked and not scenario.overlap:
        raise click.UsageError(
            "--comm-sm-fraction needs overlap: without it nothing runs beside transfers"
        )
    return scenario


def compared(
    given: dict[str, Any], most: int | None = None, source: str | None = None, **more: Any
) -> Comparison:
    """Compare schedules as the options of `comparison_options` say; `most`: if none are named.

    `source`: a plan file, whose workload it is and whose plans are compared, too.
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
    """The plan of a plan file, or of a schedule; `given` are the options of `source_options`.

    Rows that see the same keys are one call where they cost less by `price`, as of `by_rows`.
    Raises click's UsageError where one of them is typed beside a plan file.
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
    refuse_typed(given, f"{source} holds its own workload")
    with working("reading and verifying"):
        return Plans.of(load(source))


def refuse_typed(given: Iterable[str], why: str) -> None:
    """Raises click's UsageError where one of these options, by their names, was typed."""
    context = click.get_current_context()
    options = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    if typed := [name for name in given if context.get_parameter_source(name) is TYPED]:
        raise click.UsageError(f"{why}: leave out {options[typed[0]]}")
