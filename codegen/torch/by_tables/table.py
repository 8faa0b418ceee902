"""text(program)   the part of a program that runs a plan by its tables, whatever the plan."""

from codegen.frame.assemble import Part, parts_of
from codegen.frame.packed import assigned
from codegen.programs import Program
from codegen.steps import Tables, tables
from codegen.torch.by_tables.calls import cutter

HEADING = """\
# ---- Tables: per rank and step what it sends [to, tensor, block, finished], what it receives
# [from, tensor, block, finished], rectangles [query blocks, key blocks, kernel calls], and copies
# that it needs no more; a block is [rank, rows of the shard, heads].

"""
VOCABULARY = "vocabulary/messages", "vocabulary/accumulation", "visitors", "merge"
INTERPRETER = "operators", "tables/memory", "tables/table", *VOCABULARY  # the parts that run tables


def text(program: Program) -> list[str | Part]:
    """Tables and interpreter, in the order of the program.

    Raises PlanError for a plan that begins with copies that no program can have.
    """
    data = assigned("TABLES: dict[str, Any]", tables_of(program))
    return [f"{HEADING}{data}\n", *parts_of("torch", *INTERPRETER)]


def operators(program: Program, shapes: str = "") -> list[str | Part]:
    """Parts for autograd and compilers, and `attention` in front of it if no tables are given.

    `shapes`: the function that says which ones it takes.
    """
    names = ["gradients"] * (program.backward is not None or program.dynamic)
    names = ["sinks", *names, "likes"]
    if program.dynamic:
        return [*parts_of("torch", "agree", "function", *names)]
    attention = "attention_with_sinks" if program.work.sinks else "attention"
    called = parts_of("torch", "agree", attention, "function")
    return [*called, shapes, *parts_of("torch", *names)]


def tables_of(program: Program) -> Tables:
    """The tables of a program by name, whose rectangles are kernel calls."""
    return tables(program.forward, program.backward, cutter)
