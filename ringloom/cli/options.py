"""Options that commands share: the workload, the source of a plan, the hardware."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import click

from planner.errors import PlanError
from planner.files import load
from planner.ir import Pass
from planner.masks import forms
from planner.parse import tokens
from planner.planning import TRIMS, Trim, plan
from planner.plans import Plans
from planner.workload import DTYPES, Workload
from ringloom.cli.progress import working

Function = TypeVar("Function", bound=Callable[..., Any])
WORKLOAD = (
    *("ranks", "seq", "kv_seq", "heads", "kv_heads", "head_dim", "v_head_dim", "batch"),
    *("sinks", "mask", "dtype", "pass_", "trim"),
)
trim_option = click.option(
    "--trim",
    type=click.Choice(list(TRIMS)),
    default="messages",
    show_default=True,
    help="Drop unused messages whole, or block by block.",
)
hardware_option = click.option(
    "--hardware", default="a100-nvlink", show_default=True, help="A preset or a TOML/JSON file."
)


def grouped(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Several options as one decorator, in this order."""

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def schedules_option(default: str | None) -> Callable[[Function], Function]:
    """Names of schedules, separated by commas; None: those that matter on the machine."""

    def read(_: click.Context, __: click.Parameter, names: str | None) -> list[str] | None:
        if names is None:
            return None
        if chosen := [name.strip() for name in names.split(",") if name.strip()]:
            return chosen
        raise click.UsageError("--schedules names none")

    shown = default or "the usual ones, in all variants that matter on the hardware"
    return click.option(
        *("--schedules", "schedules"),
        default=default,
        callback=read,
        help=f"Comma-separated.  [default: {shown}]",
    )


overlap_option = click.option(
    "--overlap/--no-overlap", default=True, help="Overlap transfers with compute."
)
max_calls_option = click.option(
    "--max-calls",
    type=click.IntRange(1),
    help="Most tiles per step of a dynamic JAX program.  [default: twice the plan's]",
)


class Tokens(click.ParamType[int]):
    """A length such as 4096, 256k or 1M."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The length as a number."""
        return value if isinstance(value, int) else tokens(value)


def workload_options(
    pass_: str = "forward", dtype: str = "bfloat16"
) -> Callable[[Function], Function]:
    """The options of a workload, with the defaults of one command."""
    return grouped(
        click.option("--ranks", type=int, help="Devices that share the sequence."),
        click.option("--seq", type=Tokens(), help="Query tokens, such as 4096, 256k or 1M."),
        click.option("--kv-seq", type=Tokens(), help="Key tokens; defaults to --seq."),
        click.option("--heads", type=int, default=32, show_default=True, help="Query heads."),
        click.option("--kv-heads", type=int, help="Number of KV heads (GQA); defaults to --heads."),
        click.option(
            "--head-dim", type=int, default=128, show_default=True, help="Elements of a head."
        ),
        click.option("--v-head-dim", type=int, help="That of values; defaults to --head-dim."),
        click.option("--sinks", is_flag=True, help="One learned logit per head beside the keys'."),
        click.option("--batch", type=int, default=1, show_default=True, help="Sequences."),
        click.option(
            "--mask",
            default="causal",
            show_default=True,
            help=f"{forms()}; joined by & and |, with parentheses.",
        ),
        click.option(
            "--dtype",
            type=click.Choice(list(DTYPES)),
            default=dtype,
            show_default=True,
            help="Of the inputs.",
        ),
        click.option(
            "--pass",
            "pass_",
            type=click.Choice(["forward", "backward", "both"]),
            default=pass_,
            show_default=True,
            help="Passes to plan.",
        ),
    )


def workload(given: dict[str, Any]) -> tuple[Workload, int]:
    """The workload and the ranks that the options of `workload_options` describe."""
    if missing := [f"--{name}" for name in ("ranks", "seq") if given[name] is None]:
        raise click.UsageError(f"missing {' and '.join(missing)}")
    sizes = ("seq", "kv_seq", "heads", "kv_heads", "head_dim", "v_head_dim", "batch")
    work = Workload(
        **{name: given[name] for name in sizes if given[name] is not None},
        mask=given["mask"],
        dtype=given["dtype"],
        sinks=given["sinks"],
    )
    if given["ranks"] < 1:
        raise PlanError(f"ranks must be a whole number from 1 up, not {given['ranks']}")
    return work, given["ranks"]


def is_file(source: str) -> bool:
    """Returns True where a source names a plan file rather than a schedule."""
    return source.endswith((".json", ".json.gz")) or Path(source).is_file()


def plans_of(source: str, given: dict[str, Any]) -> Plans:
    """The plan of a plan file, or of a schedule for the workload that the options describe."""
    if not is_file(source):
        work, ranks = workload(given)
        pass_: Pass | Literal["both"] = given["pass_"]
        trim: Trim = given.get("trim", "messages")
        with working("planning"):
            return Plans.of(plan(source, work, ranks, pass_=pass_, trim=trim))
    context = click.get_current_context()
    typed = [
        name
        for name in WORKLOAD
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    ]
    if typed:
        option = "--" + typed[0].rstrip("_").replace("_", "-")
        raise click.UsageError(f"{source} holds its own workload: leave out {option}")
    with working("reading and verifying"):
        return Plans.of(load(source))
