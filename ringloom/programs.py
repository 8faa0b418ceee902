"""ringloom emit, tables, check   programs and tables written from plans, and programs judged."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from codegen.emitting import emit as write
from codegen.emitting import save_tables
from codegen.emitting import tables as tables_of
from codegen.programs import PLATFORMS, TARGETS
from planner.errors import PlanError
from ringloom.options import is_file, plans_of, trim_option, workload, workload_options
from ringloom.output import json_option, show
from ringloom.progress import working

KEPT = 4000  # characters of a program's last words that are shown
max_calls_option = click.option(
    "--max-calls",
    type=click.IntRange(1),
    help="Tiles per step that a dynamic JAX program has room for.  [default: twice the plan's]",
)


@click.command()
@click.argument("target", type=click.Choice(TARGETS))
@click.argument("source", metavar="SCHEDULE|PLAN.json")
@workload_options(pass_="both")
@trim_option
@click.option(
    "--dynamic", is_flag=True, help="Take the mask at run time, so it can change per batch."
)
@max_calls_option
@click.option(
    "--layer",
    is_flag=True,
    help="Emit a decoder layer that does not recompute attention in the backward pass.",
)
@click.option(
    "--platform",
    type=click.Choice(PLATFORMS),
    default="all",
    show_default=True,
    help="Leave out the kernels of other platforms (JAX).",
)
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the program there.")
@json_option
def emit(
    target: str,
    source: str,
    dynamic: bool,
    max_calls: int | None,
    layer: bool,
    platform: str,
    output: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Write a plan as one readable file that runs without ringloom."""
    program = write(
        plans_of(source, given),
        target,
        dynamic=dynamic,
        layer=layer,
        platform=platform,
        max_calls=max_calls,
        command="" if is_file(source) else typed_command(),
    )
    document = {
        "target": target,
        "file": output,
        "lines": program.count("\n"),
        "bytes": len(program),
    }
    if output:
        _write(program, output)
        show(
            as_json, document, f"{output}: {document['lines']} lines; python {output} checks itself"
        )
    elif as_json:
        show(True, document | {"source": program})
    else:
        click.echo(program, nl=False)


def typed_command() -> str:
    """The command of this context as it was typed, without where its answer goes."""
    context = click.get_current_context()
    words = ["ringloom", str(context.info_name)]
    options = list[str]()
    for parameter in context.command.params:
        name, value = str(parameter.name), context.params.get(str(parameter.name))
        if isinstance(parameter, click.Argument):
            words.append(str(value))
        elif name not in ANSWERS and context.get_parameter_source(name) is TYPED:
            options.append(parameter.opts[0])
            if not (isinstance(parameter, click.Option) and parameter.is_flag):
                options.append(str(value))
    return shlex.join([*words, *options])


ANSWERS = ("output", "as_json")
TYPED = click.core.ParameterSource.COMMANDLINE


def _write(program: str, output: str) -> None:
    try:
        Path(output).write_text(program)
    except OSError as error:
        raise PlanError(f"cannot write {output}: {error.strerror}") from None


@click.command()
@click.argument("target", type=click.Choice(TARGETS))
@click.argument("source", metavar="SCHEDULE|PLAN.json")
@workload_options(pass_="both")
@trim_option
@max_calls_option
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False), required=True, help="An .npz file."
)
@json_option
def tables(
    target: str, source: str, max_calls: int | None, output: str, as_json: bool, **given: Any
) -> None:
    """Write a plan as the tables that an `emit --dynamic` program of its ranks takes."""
    masked: dict[str, Any] = {}
    if target == "jax" and not is_file(source):  # the program's plans, and the mask to run
        masked = {"mask": workload(given)[0].mask}
        given = given | {"mask": "full"}
    found = tables_of(plans_of(source, given), target, max_calls=max_calls, **masked)
    save_tables(found, output)
    size = Path(output).stat().st_size
    document = {"target": target, "file": output, "arrays": sorted(found), "bytes": size}
    show(as_json, document, f"{output}: {size} bytes; a dynamic program's load() reads it")


@click.command()
@click.argument("file", type=click.Path())
@click.option("--seq", type=int, help="Queries, if not as many as the program chooses.")
@click.option("--time-limit", type=float, default=600.0, show_default=True, help="Seconds.")
@json_option
def check(file: str, seq: int | None, time_limit: float, as_json: bool) -> int:
    """Run the self-check of an emitted file: output and gradients against dense attention."""
    if not Path(file).is_file():
        raise PlanError(f"no file {file}")
    command = [sys.executable, file, *([] if seq is None else ["--seq", str(seq)])]
    try:
        with working("running the program's own check"):
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=time_limit, check=False
            )
    except subprocess.TimeoutExpired:
        raise PlanError(f"{file} took more than {time_limit:g} s") from None
    said = (done.stdout + done.stderr).strip()[-KEPT:]
    exact = done.returncode == 0
    show(as_json, {"file": file, "exact": exact, "output": said}, said)
    return 0 if exact else 1
