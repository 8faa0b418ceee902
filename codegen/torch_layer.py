"""torch_layer   Program -> the source of a decoder layer whose backward repeats no attention."""

from codegen import torch_check, torch_layer_text
from codegen.program import Pieces, Program
from codegen.rewording import reworded
from codegen.torch_header import header
from codegen.torch_program import attention_file, self_check_main
from planner.errors import PlanError


def write(program: Program) -> str:
    """The file, formatted as ruff formats it, for any line length from 88 to 100.

    Raises PlanError for a plan that no layer can be made of: one without a backward plan, one
    whose queries and keys are not the same tokens on the same ranks, one of odd head_dim.
    """
    refuse(program)
    w = attention_file(program, layer_header(program))
    w.title("decoder layer")
    dim = program.work.heads * program.work.head_dim
    w.section(
        torch_layer_text.PARAMETERS.format(dim=dim, hidden=ffn_width(dim), rope_base="10000.0")
    )
    w.section(torch_layer_text.PARTS)
    w.section(torch_layer_text.LAYER)
    w.title("reference and self-check")
    _, _, allowed = torch_check.DENSE.partition("\n\n\n")
    w.section(torch_layer_text.REFERENCE)
    w.section(allowed)
    w.section(torch_layer_text.CHECK)
    _, _, worst = torch_check.CHECK.partition("\n\n\ndef worst(")
    w.section("def worst(" + worst)
    main = self_check_main(program)
    w.section(
        reworded(
            main,
            {
                '("out", "dq", "dk", "dv")': '("y", "dx", *NAMES)',
                "(first, rest, rest, rest)": "(first, *[rest] * 10)",
                "{name:3} error": "{name:14} error",
                "against dense attention": "against its reference",
            },
        )
    )
    return w.text()


def layer_header(p: Program) -> str:
    """The docstring of the file."""
    return reworded(
        header(p),
        {
            '"""Attention over': '"""A decoder layer over',
            "use       out = attention(q, k, v), each rank with its shard, see positions(rank)": (
                "use       y = decoder_layer(params, x), params = init(seed), x each rank's\n"
                "          shard of the tokens, see positions(rank): RMSNorm, rotary embedding\n"
                "          by true positions, attention, SwiGLU; backward repeats no attention;\n"
                "          or out = attention(q, k, v) alone"
            ),
            "with dense attention": "with the reference",
        },
    )


def ffn_width(dim: int) -> int:
    """8/3 of the width, rounded up to a multiple of 256, or of 16 in small models."""
    step = 256 if dim >= 1024 else 16
    return -(-8 * dim // (3 * step)) * step


def refuse(p: Program) -> None:
    """Raise PlanError for a plan that no layer can be made of."""
    work = p.work
    if p.backward is None:
        raise PlanError("a decoder layer needs a backward plan too: give a pair, or --pass both")
    if work.seq != work.kv_seq:
        raise PlanError(
            f"a decoder layer attends to its own tokens: {work.seq} queries, {work.kv_seq} keys"
        )
    if _tokens(p.layout.q, p.ranks) != _tokens(p.layout.kv, p.ranks):
        raise PlanError("a decoder layer needs queries and keys of a token on the same rank")
    if work.head_dim % 2:
        raise PlanError(f"rotary embedding needs an even head_dim, not {work.head_dim}")


def _tokens(pieces: Pieces, ranks: int) -> list[list[int]]:
    """The positions of each rank, in the order of its shard."""
    found: list[list[int]] = [[] for _ in range(ranks)]
    for piece, home in pieces:
        found[home] += sorted(i for part in piece for i in part)
    return found
