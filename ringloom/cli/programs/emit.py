"""Write a plan as a readable program that runs without ringloom.

Example:
  ringloom emit torch zigzag --ranks 8 --seq 256k --kv-heads 8 -o attention.py
"""

from typing import Any

import click

from ringloom.cli.options import FILE, is_file, max_calls_option, plans_of, source_options
from ringloom.cli.output import TYPED, show, typed_command, working
from ringloom.codegen import emit
from ringloom.codegen.programs import PLATFORMS, TARGETS
from ringloom.planner.disk import write


@click.command()
@click.argument("target", type=click.Choice(TARGETS))
@source_options(pass_="both")
@click.option(
    "--dynamic", is_flag=True, help="Take the mask at run time, so it can change per batch."
)
@max_calls_option
@click.option(
    "--platform",
    type=click.Choice(PLATFORMS),
    default="all",
    help="With jax: include only the kernels of this platform.",
)
@click.option("-o", "--output", type=FILE, help="Output file.")
def command(
    target: str,
    source: str,
    dynamic: bool,
    max_calls: int | None,
    platform: str,
    output: str | None,
    **options: Any,
) -> None:
    typed = click.get_current_context().get_parameter_source
    if dynamic and target == "jax" and typed("mask") is not TYPED:
        options["mask"] = "full"  # the program sends every block; tables contain the mask
    plans = plans_of(source, options)
    with working("writing and checking the program"):
        program = emit(
            plans,
            target,
            dynamic=dynamic,
            platform=platform,
            max_calls=max_calls,
            command=typed_command(source if is_file(source) else ""),
        )
    lines, size = program.count("\n"), len(program)
    document = {"target": target, "file": output, "lines": lines, "bytes": size}
    if output:
        write(output, program.encode())
        show(document, text=f"{output}: {lines} lines; to check it, run: python {output}")
    else:
        show(document | {"source": program}, text=program)
