"""schedule(program)   prints both passes of a JAX program, with the constants they use."""

from typing import NamedTuple

from ringloom.codegen.expressions import form_of
from ringloom.codegen.ir import Slice, Swap, Wait, walk
from ringloom.codegen.jax.printer import SAVED, Printer
from ringloom.codegen.programs import Program
from ringloom.codegen.words import SIZES
from ringloom.planner.errors import PlanError


class Schedule(NamedTuple):
    """The text of both passes; `held`: the forward pass keeps its outputs for the backward."""

    text: str
    held: bool


def schedule(program: Program) -> Schedule:
    """Prints the constants and both passes; raises PlanError for an op without a call."""
    assert program.lowered
    form = form_of(program)
    made = [Printer(one, form) for one in program.lowered]
    saved = SAVED if len(made) == 1 or program.work.sinks else made[-1].saved
    made[-1].saved = saved
    mesh = max((one.mesh for one in program.lowered), key=len)  # one of several axes at most
    lines = ["# ---- Schedule", ""]
    if len(mesh) > 1:
        lines += [f"MESH = {mesh}", f"{', '.join(SIZES[len(mesh)])} = MESH"]
    for data in (form.data, form.constants):
        lines += [f"{name} = {value}" for name, value in data.items()]
    for printer in made:
        lines += ["", "", *printer.function(saved)]
    held = any(register.of == "q" for register in program.lowered[0].kept)
    if program.work.sinks and held:
        lines += local_sinks(made[0])
    return Schedule("\n".join(lines) + "\n", held)


def local_sinks(forward: Printer) -> list[str]:
    """Prints a function that returns the sinks of the heads that this rank works on."""
    (kept,) = (register for register in forward.program.kept if register.of == "q")
    for op in walk(forward.program.ops):
        if isinstance(op, Wait) and op.into == Slice(kept):
            if not isinstance(op.message.route, Swap):
                break
            axis = op.message.route.axis
            size = forward.sizes[axis]
            at = f"jnp.unravel_index(lax.axis_index(axis), {forward.mesh})[{axis}]"
            return [
                *("", "", "def local_sinks(sinks, axis):"),
                '    """Return the sinks of this rank\'s heads."""',
                f"    return sinks.reshape({size}, -1)[{at}]",
            ]
    raise PlanError("sinks are divided among ranks, but outputs have all heads")
