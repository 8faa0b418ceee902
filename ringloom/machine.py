"""Schedules as a machine runs them: collectives that know its nodes."""

from planner.planning import find_schedule
from simulator.hardware import Hardware


def on_machine(schedule: str, ranks: int, machine: Hardware) -> str:
    """Return a schedule, with node= where it has nodes and says none, and the machine has some."""
    recipe, given = find_schedule(schedule)
    node = machine.ranks_per_node
    if "node" not in recipe.parameters or "node" in given or not 1 < node < ranks or ranks % node:
        return schedule
    return f"{schedule}:node={node}"
