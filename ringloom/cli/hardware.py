"""List the hardware presets, or the constants of one, with sources.

NAME is a preset or a file; an assumed constant is one that was not measured on this hardware.

Example:
  ringloom hardware h100
"""

from dataclasses import asdict

import click

from ringloom.cli.output import csv_option, json_option, show
from ringloom.views.tables import plain_table
from ringloom.views.units import size
from simulator.hardware import hardware, presets


@click.command()
@click.argument("name", required=False)
@csv_option
@json_option
def command(name: str | None, as_json: bool) -> None:
    if name is None:
        _list(as_json)
        return
    machine = hardware(name)
    rows = [{"constant": key, **asdict(c)} for key, c in machine.constants.items()]
    table = plain_table("constant", "value", "", "source", numbers=slice(1, 2))
    for key, constant in machine.constants.items():
        mark = "" if constant.calibrated else "assumed"
        table.add_row(key, f"{constant.value:.6g}", mark, constant.source)
    show(as_json, {"name": machine.name, "constants": rows}, table, rows=rows)


def _list(as_json: bool) -> None:
    rows = []
    table = plain_table("preset", "per node", "bf16 TF/s", "memory", "link GB/s", "between nodes",
                        numbers=slice(1, None))  # fmt: skip
    for name in presets():
        machine = hardware(name)
        inside, between = (link.bandwidth for link in machine.links)
        peak, room = machine.peak("bfloat16"), machine["memory.capacity"]
        numbers = machine.ranks_per_node, peak / 1e12, room, inside / 1e9, between / 1e9
        keys = (
            "ranks_per_node",
            "bfloat16_tflops",
            "memory_bytes",
            "link_gb_s",
            "between_nodes_gb_s",
        )
        rows.append({"name": name, **dict(zip(keys, numbers, strict=True))})
        rates = [f"{rate / 1e9:.3g}" for rate in (inside, between)]
        per_node = str(machine.ranks_per_node)
        table.add_row(name, per_node, f"{peak / 1e12:.4g}", size(room), *rates)
    show(as_json, {"hardware": rows}, table, rows=rows)
