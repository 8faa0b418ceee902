"""schedule(program, ...)   the schedule of a table program: the interpreter and its tables."""

from collections.abc import Iterator

from codegen.frame.assemble import Part, parts_of
from codegen.frame.packed import assigned
from codegen.jax.tables.slots import COLUMNS, tables
from codegen.programs import Program

NUMBERS = {name: 2 + len(columns) for name, columns in COLUMNS.items()}  # of a tile


def schedule(program: Program, *more: str) -> list[str | Part]:
    """The texts that define both passes, and `more` lines behind the tables."""
    table, arrays, masked = parts_of("jax", "tables/table", "tables/arrays", "masked")
    data = assigned("TABLES: dict[str, Any]", tables(program.forward, program.backward))
    return [table, arrays, "\n".join([data, *constants(program), *more]) + "\n", masked]


def constants(program: Program) -> Iterator[str]:
    """The blocks of both sides, and the steps of the passes."""
    layout = program.layout
    apart = not layout.alike or layout.q.tokens != layout.kv.tokens
    for name, at, heads in (
        ("QUERIES", "positions", "HEADS"),
        ("KEYS", "kv_positions" if apart else "positions", "KV_HEADS"),
    ):
        shards = f"[{at}(rank) for rank in range(RANKS)]"
        yield f'{name} = side_of(TABLES["{name}"], {shards}, {heads})'
    for plan in program.plans:
        name = plan.pass_.upper()
        yield f'{name}_STEPS = steps_of(TABLES["{name}"], {NUMBERS[plan.pass_]})'


def passes(program: Program) -> Iterator[str]:
    """The functions of both passes, with their tables."""
    for plan in program.plans:
        name = plan.pass_
        yield f"{name} = partial(run_{name}, tiles={name.upper()}_STEPS.tiles)"
