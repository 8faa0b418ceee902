"""Programs in JAX: a shard_map of loops with collectives, or of tables."""

from collections.abc import Sequence

from codegen.frame.assemble import PACKED, Part, assemble, parts_of
from codegen.frame.header import constants, docstring
from codegen.frame.layout_text import has_kv_positions, layout_text
from codegen.frame.masks import mask_function
from codegen.jax import by_tables
from codegen.jax.by_tables import tables
from codegen.jax.schedule import schedule
from codegen.programs import Program
from planner.errors import PlanError

__all__ = ["tables", "write"]
VOCABULARY = "vocabulary/messages", "vocabulary/accumulation"
KEEP = ("PLAN", "positions", "shard", "unshard", "attention", "main")


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
    layout, keys = program.layout, has_kv_positions(program.layout, "jax")
    every_text = [
        constants(program) + checked(program),
        PACKED,
        layout_text(layout, "jax", program.free),
        *texts,
        *([] if program.backward else parts_of("jax", "forward_alone")),
        shapes(program, keys),
        *function(program),
        *[mask_function(program.work, "jax")] * (not program.dynamic),
        *parts_of("jax", "dense", "check"),
    ]
    held = held and program.work.sinks
    choices = program.choices | {
        "HELD": held,
        "APART": keys,
        "PADDED": not layout.equal,
    }
    keep = [*KEEP, *["kv_positions"] * keys, *by_tables.KEEP * program.dynamic]
    usage = by_tables.USAGE * program.dynamic
    return assemble(docstring(program, usage), every_text, keep, choices)


def function(program: Program) -> list[Part]:
    """The parts with the function to call, of what it is given beside queries, keys and values."""
    kind = "sinks" if program.work.sinks else "tables/dynamic" if program.dynamic else "attention"
    return parts_of("jax", "function", kind)


def kernels(platform: str) -> list[Part]:
    """The parts that define `attend`, `attend_tile`, their backward passes and `merge`.

    platform: tpu, gpu or cpu, whose kernels alone stand in the program then, or all.
    """
    every = "tpu", "gpu", "cpu"
    names = (f"kernels_{name}" for name in (every if platform == "all" else (platform,)))
    return parts_of("jax", "tiles", "kernels", *names, "masked")


def checked(program: Program) -> str:
    """Says the tokens that the self-check takes, and what it compares."""
    gradients = ("dq", "dk", "dv", *["dsinks"] * program.work.sinks)
    results = ("out", *gradients * (program.backward is not None))
    names, values = ("EVERY", "CHECKED", "RESULTS"), (every(program), program.checked, results)
    return f"{', '.join(names)} = {', '.join(map(str, values))}  # of the self-check\n"


def every(program: Program) -> int:
    """One query in so many is compared: above 16k tokens, some are enough."""
    return max(1, program.checked**2 >> 28)


def shapes(program: Program, keys: bool) -> str:
    """The function that says which shapes a program takes; `keys`: they lie elsewhere."""
    heads, kv_heads = "HEADS * shards", "KV_HEADS * shards"
    if program.any_heads:
        kv_heads = "max(1, k.shape[1] // shards) * shards"
        heads = "max(1, q.shape[1] // kv_heads) * kv_heads"
    tokens = "RANKS * len(positions(0))"
    kv_tokens = "    kv_tokens = RANKS * len(kv_positions(0))\n" * keys
    if program.free:
        many = program.layout.multiple
        tokens = f"max({program.least // many}, q.shape[2] // {many}) * {many}"
    return f'''
def shapes(q, k, shards):
    """The shapes of q, and of k and v, that go: the nearest to those given."""
    kv_heads, tokens = {kv_heads}, {tokens}
{kv_tokens}    q_sizes, kv_sizes = ({heads}, tokens), (kv_heads, {"kv_" * keys}tokens)
    return (len(q), *q_sizes, HEAD_DIM), (len(q), *kv_sizes, HEAD_DIM)
'''
