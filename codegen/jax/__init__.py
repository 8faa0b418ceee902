"""Programs in JAX: a shard_map of loops with collectives, or of tables."""

from collections.abc import Sequence

from ringloom.codegen.frame.assemble import PACKED, Part, assemble, parts_of
from ringloom.codegen.frame.header import constants, docstring
from ringloom.codegen.frame.layout_text import layout_text
from ringloom.codegen.frame.masks import mask_function
from ringloom.codegen.jax import by_tables
from ringloom.codegen.jax.by_tables import tables
from ringloom.codegen.jax.schedule import schedule
from ringloom.codegen.programs import Program
from ringloom.planner.errors import PlanError

__all__ = ["tables", "write"]
VOCABULARY = "vocabulary/messages", "vocabulary/accumulation"


def write(program: Program) -> str:
    """The text of a program: loops where they are regular and can be printed, else tables."""
    if program.dynamic:
        program = by_tables.with_room(program)
    if program.lowered is not None:
        try:
            made = schedule(program)
            parts = [*parts_of("jax", *VOCABULARY), *kernels(program.platform)]
            return written(program, [made.text, *parts], made.held)
        except PlanError as error:
            program = program.as_tables(str(error))
    return written(program, by_tables.schedule(program))


def written(program: Program, texts: Sequence[str | Part], held: bool = False) -> str:
    """A program of this schedule: the texts of `forward` and `backward`, and of what they call.

    `held`: the backward pass begins with outputs of some heads, to which their sinks belong.
    """
    every_text: list[str | Part] = [
        constants(program),
        PACKED,
        layout_text(program.layout, "jax", program.free),
        *parts_of("jax", "layout"),
        *texts,
        *([] if program.backward else parts_of("jax", "forward_alone")),
        *parts_of("jax", "shapes"),
        *function(program),
        *[mask_function(program.work, "jax")] * (not program.dynamic),
        *parts_of("jax", "dense", "check"),
    ]
    choices = program.choices | {"HELD": held and program.work.sinks}
    return assemble(docstring(program), every_text, program.interface, choices)


def function(program: Program) -> list[Part]:
    """The parts with the function to call, of what it is given beside queries, keys and values."""
    kind = "sinks" if program.work.sinks else "tables/dynamic" if program.dynamic else "attention"
    return parts_of("jax", "function", kind)


def kernels(platform: str) -> list[Part]:
    """The parts that define `attend`, `attend_tile`, their backward passes and `merge`.

    platform: tpu, gpu or cpu, to include only its kernels, or all.
    """
    every = "tpu", "gpu", "cpu"
    names = (f"kernels_{name}" for name in (every if platform == "all" else (platform,)))
    return parts_of("jax", "tiles", "kernels", *names, "masked")
