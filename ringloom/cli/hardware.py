"""List the hardware presets, or the constants of one, with sources.

NAME is a preset or a file; an assumed constant is one that was not measured on this hardware.

Example:
  ringloom hardware h100
"""

from dataclasses import asdict

import click

from ringloom.cli.output import csv_option, show
from ringloom.views.tables import plain_table
from ringloom.views.units import size
from simulator.hardware import hardware, presets


@click.command()
@click.argument("name", required=False)
@csv_option
def command(name: str | None) -> None:
    if name is None:
        _list()
        return
    machine = hardware(name)
    rows = [{"constant": key, **asdict(c)} for key, c in machine.constants.items()]
    table = plain_table("constant", "value", "", "source", numbers=slice(1, 2))
    for key, constant in machine.constants.items():
        mark = "" if constant.calibrated else "assumed"
        table.add_row(key, f"{constant.value:.6g}", mark, constant.source)
    show({"name": machine.name, "constants": rows}, table, rows=rows)


def _list() -> None:
    """One row per preset: what decides at first sight which one is near."""
    rows = []
    heads = "preset", "per node", "bf16 TF/s", "memory", "link GB/s", "between nodes"
    table = plain_table(*heads, numbers=slice(1, None))
    for name in presets():
        machine = hardware(name)
        inside, between = (link.bandwidth / 1e9 for link in machine.links)
        row = {
            "name": name,
            "ranks_per_node": machine.ranks_per_node,
            "bfloat16_tflops": machine.peak("bfloat16") / 1e12,
            "memory_bytes": machine["memory.capacity"],
            "link_gb_s": inside,
            "between_nodes_gb_s": between,
        }
        rows.append(row)
        peak, room = f"{row['bfloat16_tflops']:.4g}", size(machine["memory.capacity"])
        per_node, rates = str(machine.ranks_per_node), (f"{inside:.3g}", f"{between:.3g}")
        table.add_row(name, per_node, peak, room, *rates)
    show({"hardware": rows}, table, rows=rows)
