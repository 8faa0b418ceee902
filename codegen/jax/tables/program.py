"""schedule(program, ...)   the schedule of a table program: the interpreter, and its tables as text

A table is text of one line per step and rank: the slots that move, and behind a bar the tiles. Of
many lines it is compressed.
"""

from collections.abc import Iterator

from codegen.assemble import Part, parts_of
from codegen.jax.tables.slots import Numbers, Tables, tables
from codegen.packed import packed
from codegen.programs import Program
from codegen.reflow import reflow
from codegen.steps import blocks as blocks_of
from codegen.text import quoted
from planner.partitions import Side

WIDTH = 100
NUMBERS = {"forward": 5, "backward": 8}  # of a tile: what and which slots it reads, and adds to


def schedule(program: Program, *more: str) -> list[str | Part]:
    """The texts that define both passes, and `more` lines behind the tables."""
    table, masked = parts_of("jax", "tables/table", "masked")
    lines = [*data(program), *sides(program), *more]
    return [table, "\n".join(lines) + "\n", masked]


def data(program: Program) -> Iterator[str]:
    """The tables of the passes."""
    made = tables(program.forward, program.backward)
    for plan, table in zip(program.plans, made, strict=True):
        name = plan.pass_.upper()
        yield f"{name}_SLOTS = {quoted(table.sizes)}"
        yield from hops(f"{name}_HOPS", table)
        steps = [line for s in table.sections for line in lines(s.moves, s.tiles)]
        idle = "|" + " -" * NUMBERS[plan.pass_]
        rows = steps or [idle] * program.ranks  # where nobody sees anything
        short = [f'{name}_ROWS = """', *(part for row in rows for part in broken(row)), '"""']
        yield from packed(f"{name}_ROWS", "\n".join(rows), short)
    yield from kept(made[0])


def passes(program: Program) -> Iterator[str]:
    """The functions of both passes, with their tables."""
    for plan in program.plans:
        name = plan.pass_
        rows = f"numbers({name.upper()}_ROWS, {NUMBERS[name]})"
        yield f"{name} = partial(run_{name}, rows={rows})"


def hops(name: str, table: Tables) -> Iterator[str]:
    """The hops of a pass, one per line."""
    start = 0
    made = list[str]()
    for section in table.sections:
        steps = range(start, start + len(section.moves))
        span = f"range({start}, {steps.stop})" if start else f"range({steps.stop})"
        for h in section.hops:
            more = ", True" * h.finished
            made.append(f"    Hop({span}, {quoted(h.tensors)}, {h.by}, {h.width}{more}),")
        start = steps.stop
    yield from [f"{name} = [", *made, "]"] if made else [f"{name} = []"]


def lines(moves: list[Numbers], tiles: list[Numbers]) -> Iterator[str]:
    """Steps as text."""
    for step in zip(moves, tiles, strict=True):
        for slots, attended in zip(*step, strict=True):
            words = ["-" if n < 0 else str(n) for n in slots]
            yield " ".join([*words, "|", *map(str, attended)])


def broken(line: str) -> Iterator[str]:
    """A line of a text as lines of a file that fit."""
    while len(line) >= WIDTH:
        cut = line.rindex(" ", 0, WIDTH - 1)
        yield line[: cut + 1] + "\\"
        line = line[cut + 1 :]
    yield line


def kept(table: Tables) -> Iterator[str]:
    """The slots of what the forward pass keeps for the backward pass: as many on every rank."""
    kept = {
        name: [row + [0] * (max(map(len, slots)) - len(row)) for row in slots]
        for name, slots in table.kept.items()
    }
    yield from reflow([f"KEPT{'' if kept else ': dict[str, list[list[int]]]'} = {quoted(kept)}"])


def sides(program: Program) -> Iterator[str]:
    """The blocks of queries and keys."""
    layout, sides = program.layout, program.forward.partition
    apart = not layout.alike or layout.q.tokens != layout.kv.tokens
    same = sides.q.blocks == sides.kv.blocks
    yield from blocks("QUERIES", sides.q, program.work.heads, "positions")
    if same and not apart:
        yield "KEYS = QUERIES"
    else:
        positions = "kv_positions" if apart else "positions"
        yield from blocks("KEYS", sides.kv, program.work.kv_heads, positions)


def blocks(name: str, side: Side, heads: int, positions: str) -> Iterator[str]:
    """The blocks of a side: owner, first of its tokens, tokens, first head, heads."""
    made = [
        f"{owner} {first} {end - first} {low} {high - low}"
        for owner, (first, end), *part in blocks_of(side, heads)
        for low, high in [part[0] if part else (0, heads)]
    ]
    many = WIDTH // (max(map(len, made)) + 3)
    yield f'{name}_BLOCKS = """'
    yield from (" | ".join(made[at : at + many]) for at in range(0, len(made), many))
    yield '"""'
    yield f"{name} = side_of({name}_BLOCKS, {positions})"
