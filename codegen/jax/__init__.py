"""Programs in JAX: a shard_map of loops with collectives, or of tables."""

import numpy as np
from numpy.typing import NDArray

from codegen.assemble import Part, assemble
from codegen.header import constants, docstring
from codegen.jax.schedule import print_loops
from codegen.layout_text import layout_text
from codegen.masks import mask_function
from codegen.programs import Program
from planner.errors import PlanError
from planner.masks import Mask

KEEP = ("PLAN", "positions", "shard", "unshard", "attention", "main")


def write(program: Program) -> str:
    """The text of a program: loops where they are regular and can be printed, else tables."""
    if program.dynamic:
        from codegen.jax import dynamic

        return dynamic.write(program)
    schedule: list[str | Part] = []
    if program.loops is not None and program.layer:
        program = program.as_tables("XLA cannot split its loops, as a layer that recomputes asks")
    if program.loops is not None:
        try:
            schedule = loop_texts(program)
        except PlanError as error:
            program = program.as_tables(str(error))
    layout = layout_text(program.layout, "jax")
    if program.loops is None:
        from codegen.jax.table import write_table

        return write_table(program)
    texts = [
        constants(program) + checked(program),
        layout,
        *schedule,
        *function_texts(program, layout),
        mask_function(program.work, "jax"),
        *jax_parts("dense", "check"),
    ]
    keys = ["kv_positions"] * ("def kv_positions" in layout)
    return assemble(docstring(program), texts, keep=(*KEEP, *keys))


def tables(program: Program, mask: Mask | None = None) -> dict[str, NDArray[np.int32]]:
    """The tables that a dynamic program of these plans takes for a mask, by default their own."""
    from codegen.jax import dynamic

    return dynamic.tables(program, mask)


def jax_parts(*names: str) -> list[Part]:
    """Parts by their names."""
    return [Part(f"jax/parts/{name}") for name in names]


def loop_texts(program: Program) -> list[str | Part]:
    """The passes as loops, and what they call."""
    return [print_loops(program), *jax_parts("schedule"), *kernels(program.platform)]


def kernels(platform: str) -> list[Part]:
    """The parts that define `attend`, `attend_masked`, their backward passes and `merge`.

    platform: tpu, gpu or cpu, whose kernels alone stand in the program then, or all.
    """
    if platform == "all":
        return jax_parts("kernels", "kernels_tpu", "kernels_gpu", "kernels_cpu", "masked")
    return jax_parts(f"kernels_for_{platform}", f"kernels_{platform}", "masked")


def function_texts(program: Program, layout: str) -> list[str | Part]:
    """The function to call."""
    alone = [] if program.backward else jax_parts("forward_alone")
    return [*alone, shapes(program, layout), *jax_parts("function")]


def checked(program: Program) -> str:
    """How many tokens the self-check takes, and what it compares."""
    tokens = program.checked
    results = '("out", "dq", "dk", "dv")' if program.backward else '("out",)'
    every = max(1, tokens**2 >> 28)  # above 16k tokens, some queries are enough
    return f"CHECKED, EVERY, RESULTS = {tokens}, {every}, {results}  # of the self-check\n"


def shapes(program: Program, layout: str) -> str:
    """The function that says which shapes a program takes."""
    heads, kv_heads = "HEADS * shards", "KV_HEADS * shards"
    if program.any_heads:
        kv_heads = "max(1, k.shape[1] // shards) * shards"
        heads = "max(1, q.shape[1] // kv_heads) * kv_heads"
    tokens = "RANKS * len(positions(0))"
    kv_tokens = "RANKS * len(kv_positions(0))" if "def kv_positions" in layout else "tokens"
    if program.free:
        many = program.layout.multiple
        tokens = f"max(1, q.shape[2] // {many}) * {many}" if many > 1 else "q.shape[2]"
    lines = [
        "def shapes(q, k, shards):",
        '    """The shapes of q, and of k and v, that go: the nearest to those given."""',
        f"    kv_heads, tokens = {kv_heads}, {tokens}",
        f"    q_sizes, kv_sizes = ({heads}, tokens), (kv_heads, {kv_tokens})",
        "    return (len(q), *q_sizes, HEAD_DIM), (len(q), *kv_sizes, HEAD_DIM)",
    ]
    return "\n".join(lines) + "\n"
