"""Write a plan as tables for a program of `emit --dynamic`.

The program must have been emitted for the same number of ranks.

Example:
  ringloom tables torch zigzag --ranks 8 --seq 64k --mask window:4096 -o t.npz
"""

from pathlib import Path
from typing import Any

import click

from ringloom.cli.options import (
    FILE,
    is_file,
    max_calls_option,
    plans_of,
    source_options,
    workload,
)
from ringloom.cli.output import show
from ringloom.codegen import mask_tables, save_tables
from ringloom.codegen.programs import TARGETS


@click.command()
@click.argument("target", type=click.Choice(TARGETS))
@source_options(pass_="both")
@max_calls_option
@click.option("-o", "--output", type=FILE, required=True, help="Output file (.npz).")
def command(target: str, source: str, max_calls: int | None, output: str, **given: Any) -> None:
    masked: dict[str, Any] = {}
    if target == "jax" and not is_file(
        source
    ):  # the plan of the program, and the mask of this batch
        masked = {"mask": workload(given)[0].mask}
        given = given | {"mask": "full"}
    arrays = mask_tables(plans_of(source, given), target, max_calls=max_calls, **masked)
    save_tables(arrays, output)
    size = Path(output).stat().st_size
    document = {"target": target, "file": output, "arrays": sorted(arrays), "bytes": size}
    show(document, text=f"{output}: {size} bytes; read it with load() of the dynamic program")
