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
def command(target: str, source: str, max_calls: int | None, output: str, **options: Any) -> None:
    settings: dict[str, Any] = {"max_calls": max_calls}
    if target == "jax" and not is_file(source):  # the program's plan has a full mask
        settings["mask"] = workload(options)[0].mask
        options = options | {"mask": "full"}
    arrays = mask_tables(plans_of(source, options), target, **settings)
    save_tables(arrays, output)
    size = Path(output).stat().st_size
    document = {"target": target, "file": output, "arrays": sorted(arrays), "bytes": size}
    show(document, text=f"{output}: {size} bytes; load it with load() of the dynamic program")
