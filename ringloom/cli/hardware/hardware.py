"""List the hardware presets, or the constants of one preset.

NAME is a preset (h100), a preset with another kernel (h100:fa3), or a file. Each constant is listed
with its source; 'assumed' marks constants that were not measured on the hardware.

Example:
  ringloom hardware h100:fa3
  ringloom hardware h100 -o mine.toml
"""

from dataclasses import asdict
from typing import Any

import click

from ringloom.cli.options import FILE
from ringloom.cli.output import csv_option, show
from ringloom.planner.disk import write
from ringloom.simulator.hardware import hardware, presets
from ringloom.simulator.hardware.measured import as_toml
from ringloom.simulator.hardware.schema import Constant, unit_of
from ringloom.views.tables import faint, plain_table
from ringloom.views.units import size


@click.command()
@click.argument("name", required=False)
@csv_option
@click.option(
    "-o", "--output", type=FILE, help="Write the constants to a TOML file that you can edit."
)
def command(name: str | None, output: str | None) -> None:
    if name is None:
        if output:
            raise click.UsageError("-o requires NAME")
        _list()
        return
    machine = hardware(name)
    written = f"written to {output}" if output else None
    if output:
        write(output, as_toml(machine).encode())
    units = {key: unit_of(key).name for key in machine.constants}
    rows = [{"constant": k, "unit": units[k], **asdict(c)} for k, c in machine.constants.items()]
    lines = (
        (key, f"{c.value:.6g}", units[key], _source(c)) for key, c in machine.constants.items()
    )
    table = plain_table("constant", "value", "unit", "source", rows=lines, numbers=slice(1, 2))
    table.columns[0].no_wrap = True
    show({"name": machine.name, "constants": rows}, table, rows=rows, text=written)


def _source(constant: Constant) -> str:
    is_clear = constant.calibrated or constant.source.startswith("assumed")
    return constant.source if is_clear else f"assumed: {constant.source}"


def _list() -> None:
    """Shows a row per preset with its main constants."""
    rows, lines = list[dict[str, Any]](), list[list[str]]()
    for name in presets():
        machine = hardware(name)
        peak, memory = machine.peak("bfloat16") / 1e12, machine["memory.capacity"]
        intra, inter = (link.bandwidth / 1e9 for link in machine.links)
        row = {"name": name, "ranks_per_node": machine.ranks_per_node, "bfloat16_tflops": peak}
        row["node"] = machine.node
        row["kernels"] = list(machine.kernels)
        row |= {"memory_bytes": memory, "link_gb_s": intra, "between_nodes_gb_s": inter}
        rows.append(row)
        rates = f"{intra:.3g}", f"{inter:.3g}"
        node, kernels = f"{machine.ranks_per_node} ({machine.node})", ", ".join(machine.kernels)
        lines.append([name, node, f"{peak:.4g}", size(memory), *rates, kernels])
    headings = "preset", "per node", "TF/s", "memory", "GB/s", "between", "kernels"
    table = plain_table(*headings, rows=lines, numbers=slice(2, 6))
    for column in table.columns[:6]:
        column.no_wrap = True
    note = (
        "per node: number of chips (links). TF/s: bfloat16. GB/s: one way, per link in a node."
        " between: GB/s per rank across nodes."
    )
    show({"hardware": rows}, table, faint(note), rows=rows)
