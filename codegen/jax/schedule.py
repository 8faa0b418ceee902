"""schedule(program)   prints both passes of a JAX program, with the constants they use."""

from typing import NamedTuple

from ringloom.codegen.expressions import form_of
from ringloom.codegen.ir import Slice, Swap, Wait, walk
from ringloom.codegen.jax.printer import SAVED, Printer
from ringloom.codegen.programs import Program
from ringloom.codegen.words import SIZES
from ringloom.planner.errors import PlanError


class Schedule(NamedTuple):
    """The text of both passes; `held`: the forward pass keeps outputs for the backward pass."""

    text: str
    held: bool


def schedule(program: Program) -> Schedule:
    """Prints the constants and both passes; raises PlanError for an op without a call."""
    assert program.lowered
    form = form_of(program)
    printers = [Printer(lowered, form) for lowered in program.lowered]
    saved = SAVED if len(printers) == 1 or program.work.sinks else printers[-1].saved
    printers[-1].saved = saved
    mesh = max((lowered.mesh for lowered in program.lowered), key=len)  # others have one axis
    lines = ["# ---- Schedule", ""]
    if len(mesh) > 1:
        lines += [f"MESH = {mesh}", f"{', '.join(SIZES[len(mesh)])} = MESH"]
    for data in (form.data, form.constants):
        lines += [f"{name} = {value}" for name, value in data.items()]
    for printer in printers:
        lines += ["", "", *printer.function(saved)]
    held = any(register.of == "q" for register in program.lowered[0].kept)
    if program.work.sinks and held:
        lines += local_sinks(printers[0])
    return Schedule("\n".join(lines) + "\n", held)


def local_sinks(forward: Printer) -> list[str]:
    """Prints a function that returns the sinks of the heads that a rank attends."""
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
                '    """Return the sinks of the heads that this rank attends."""',
                f"    return sinks.reshape({size}, -1)[{at}]",
            ]
    raise PlanError("the kept outputs have all heads, so their sinks cannot be divided")
