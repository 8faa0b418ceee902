"""schedule(program)   both passes of a JAX program as text, with the constants that they name."""

from typing import NamedTuple

from ringloom.codegen.expressions import form_of
from ringloom.codegen.ir import Slice, Swap, Wait, walk
from ringloom.codegen.jax.printer import SAVED, Printer
from ringloom.codegen.programs import Program
from ringloom.codegen.words import SIZES
from ringloom.planner.errors import PlanError


class Schedule(NamedTuple):
    """The text of both passes; `held`: the backward pass begins with outputs of the forward one."""

    text: str
    held: bool


def schedule(program: Program) -> Schedule:
    """The constants and both passes, printed; PlanError for what has no call."""
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
    for each in made:
        lines += ["", "", *each.function(saved)]
    held = any(register.of == "q" for register in program.lowered[0].kept)
    if program.work.sinks and held:
        lines += share_of_sinks(made[0])
    return Schedule("\n".join(lines) + "\n", held)


def share_of_sinks(forward: Printer) -> list[str]:
    """The function that gives the sinks of the heads of the outputs that a forward pass keeps."""
    (kept,) = (register for register in forward.program.kept if register.of == "q")
    for op in walk(forward.program.ops):
        if isinstance(op, Wait) and op.into == Slice(kept):
            if not isinstance(op.message.route, Swap):
                break
            axis = op.message.route.axis
            size = forward.sizes[axis]
            at = f"jnp.unravel_index(lax.axis_index(axis), {forward.mesh})[{axis}]"
            return [
                *("", "", "def share_of(sinks, axis):"),
                '    """The sinks of our share of the heads."""',
                f"    return sinks.reshape({size}, -1)[{at}]",
            ]
    raise PlanError("sinks are shared among ranks, their outputs are of all heads")
