"""Writes JAX programs: a shard_map over loops with collectives, or over tables."""

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
    """Returns the text of a program: its lowered passes where they can be printed, else tables."""
    if program.dynamic:
        program = by_tables.with_room(program)
    if program.lowered is not None:
        try:
            text, held = schedule(program)
            parts = [*parts_of("jax", *VOCABULARY), *kernels(program.platform)]
            return assembled(program, [text, *parts], held)
        except PlanError as error:
            program = program.as_tables(str(error))
    return assembled(program, by_tables.schedule(program))


def assembled(program: Program, passes: Sequence[str | Part], held: bool = False) -> str:
    """Returns the text of a program from the text of its passes.

    `held`: the backward pass begins with the outputs of some heads, which need their sinks.
    """
    texts: list[str | Part] = [
        constants(program),
        PACKED,
        layout_text(program.layout, "jax", program.any_length),
        *parts_of("jax", "layout"),
        *passes,
        *([] if program.backward else parts_of("jax", "forward_alone")),
        *parts_of("jax", "shapes"),
        *function_parts(program),
        *[mask_function(program.work, "jax")] * (not program.dynamic),
        *parts_of("jax", "dense", "check"),
    ]
    choices = program.choices | {"HELD": held and program.work.sinks}
    return assemble(docstring(program), texts, program.interface, choices)


def function_parts(program: Program) -> list[Part]:
    """Returns the parts that define `attention`, with sinks or tables if the program takes them."""
    name = "sinks" if program.work.sinks else "tables/dynamic" if program.dynamic else "attention"
    return parts_of("jax", "function", name)


def kernels(platform: str) -> list[Part]:
    """Returns the parts that define `attend`, `attend_tile`, their backward passes and `merge`.

    platform: tpu, gpu or cpu, to include only its kernels, or all.
    """
    platforms = ("tpu", "gpu", "cpu") if platform == "all" else (platform,)
    names = (f"kernels_{name}" for name in platforms)
    return parts_of("jax", "tiles", "kernels", *names, "masked")
