"""torch_dynamic   Program -> the source of an attention function whose tables are an argument.

Of the program only ranks, heads, head_dim and scale are used: any plan of these can be its tables.
"""

from dataclasses import replace

import numpy as np

from codegen import layouts, rows, torch_check, torch_dynamic_text, torch_tables
from codegen.program import Layout, Node, Program, Schedule, Shape
from codegen.rewording import reworded
from codegen.torch_header import imports, sign
from codegen.torch_program import attention_file
from codegen.writer import Writer
from planner.regions import FAR

SHAPES = {
    "sizes": "()",
    "scale": "None",
    "mask": "(6,)",
    **dict.fromkeys(("q_pieces", "kv_pieces"), "(4,)"),
    **dict.fromkeys(("q_homes", "kv_homes"), "()"),
    **dict.fromkeys(("q_slices", "kv_slices"), "(2,)"),
    **dict.fromkeys(("forward_rows", "backward_rows"), "(7,)"),
    **dict.fromkeys(("forward_blocks", "backward_blocks"), "()"),
}


def write(program: Program) -> str:
    """The file, formatted as ruff formats it, for any line length from 88 to 100."""
    sizes = {
        "heads": program.work.heads,
        "kv_heads": program.work.kv_heads,
        "head_dim": program.work.head_dim,
    }
    anything = any_plan(program)
    parts = sections(attention_file(anything, '"""Any plan."""').text())
    w = Writer()
    w(header(program))
    w()
    w(dynamic_imports(anything))
    w()
    w(constants(program))
    w.title("tables: a plan as plain arrays")
    w.section(torch_dynamic_text.TABLES)
    w.section(torch_dynamic_text.EXAMPLE)
    w.title("layout: where tokens are")
    w.paste(layouts.positions_of)
    w.section(torch_dynamic_text.LAYOUT)
    w.title("schedule: who attends what and what travels where, one row per rank")
    w.paste(rows.Attend, rows.Move, rows.Held)
    w.section(torch_dynamic_text.SCHEDULE)
    text = "\n\n\n".join(f"# ---- {title}{rest}" for title, rest in parts.items())
    before, _, after = text.partition("def attention(q, k, v, *, group=None):")
    _, _, after = after.partition("def check_shapes(")
    attention = torch_dynamic_text.ATTENTION.format(**sizes).strip("\n")
    text = f"{before}{attention}\n\n\ndef check_shapes({after}"
    w.section(reworded(text, torch_dynamic_text.ANEW))
    _check(w, program)
    return w.text()


def any_plan(p: Program) -> Program:
    """A program for which every text is written in its most general form: a mask of boxes, slices
    of heads, copies kept for the backward pass, the query side travelling in it."""
    half = [range(1), range(1, 2)]
    none = np.zeros((0, 1), np.int64)
    nodes: list[Node] = [
        rows.Held(("KV",), none, none[:, 0]),
        rows.Move(0, ("Q", "DOUT", "STATS"), none, none[:, 0], none[:, 0]),
    ]
    return replace(
        p,
        layout=Layout(None, [], [], half, half),
        layout_name="",
        mask=Shape("boxes", np.zeros((0, 6), np.int64)),
        forward=Schedule(None, [], {}),
        backward=Schedule(None, nodes, {}),
    )


def sections(text: str) -> dict[str, str]:
    """The parts of a file that hold for any plan: title -> what follows it."""
    parts = [part.partition("\n") for part in text.split("# ---- ")[1:]]
    return {
        title: "\n" + rest.rstrip("\n")
        for title, _, rest in parts
        if not title.startswith(("layout", "schedule"))
    }


def header(p: Program) -> str:
    """The docstring: what is computed, and how to use it."""
    work = p.work
    return f'''"""Attention over {p.ranks} ranks by any plan for them: its tables are an argument.

heads     {work.heads} query heads on {work.kv_heads} KV heads of {work.head_dim}
tables    `ringloom tables torch SCHEDULE ... -o FILE`, then load(FILE); or, where
          ringloom is at hand, Tables(ringloom.tables(plan, "torch")); so a batch of
          other documents needs other tables, but no other program
use       out = attention(q, k, v, tables), each rank with its shard, see
          positions(rank, tables)
launch    under torchrun, NCCL for tensors on GPUs and gloo for tensors on CPUs
checked   ringloom proves a plan before it makes tables of it; this file refuses those
          of other ranks or heads, and ranks whose tables differ;
          `python FILE --tables TABLES`, or torchrun --nproc-per-node {p.ranks} FILE,
          compares output and gradients with dense attention, exit code 1 if they differ
"""'''


def dynamic_imports(p: Program) -> str:
    """What the program imports."""
    return reworded(
        imports(p),
        {
            "import argparse\n": "import argparse\nimport hashlib\n",
            "import groupby": "import accumulate, chain, groupby, pairwise",
        },
    )


def constants(p: Program) -> str:
    """Sizes that tables cannot change, and what a few names mean."""
    work = p.work
    lines = [
        f"P = {p.ranks}  # ranks",
        f"HEADS, KV_HEADS, HEAD_DIM = {work.heads}, {work.kv_heads}, {work.head_dim}",
        f"GROUP = {work.group}  # query heads per KV head",
        f"SCALE = {work.softmax_scale!r}",
        *sign(work.softmax_scale),
        'SUMS = ("OUT", "DQ", "DKV")  # running sums; the other tensors are inputs',
        f"FORMAT = {torch_tables.FORMAT}  # of tables",
        f"TENSORS = {_quoted(torch_tables.TENSORS)}",
        'WAYS = ("forward", "backward")',
        "RECENT = 32  # how many tables are remembered, ranks and passes counted one by one",
        f"FAR = 2**{FAR.bit_length() - 1}  # no bound",
        "SHAPES = {  # of the arrays in tables: what follows the first axis",
        *[f'    "{name}": {shape},' for name, shape in SHAPES.items()],
        "}",
        "PLAN = {",
        '    "ranks": P,',
        '    "heads": HEADS,',
        '    "kv_heads": KV_HEADS,',
        '    "head_dim": HEAD_DIM,',
        f'    "dtype": "{work.dtype}",',
        "}",
        "Ints = Flags = np.ndarray",
    ]
    return "\n".join(lines)


def _quoted(names: tuple[str, ...]) -> str:
    return "(" + ", ".join(f'"{name}"' for name in names) + ")"


def _check(w: Writer, p: Program) -> None:
    text = torch_dynamic_text
    w.title("self-check")
    w.section(reworded(torch_check.DENSE, text.DENSE_ANEW))
    check = torch_check.CHECK.format(backward="tables.both", grads=text.GRADS.strip("\n"))
    w.section(reworded(check, text.CHECK_ANEW))
    main = torch_check.MAIN.format(
        default=64 * p.ranks, fixed="", complaint='"--seq must be at least 1"'
    )
    w.section(reworded(main, text.MAIN_ANEW))
