"""Rank splits of GPUs into tensor, context and data parallelism.

MODEL.json is the config.json of a Hugging Face model. Splits that fit in memory are ranked by the
predicted time of a step: attention is simulated with the fastest schedule of each split, other
flops and bytes are counted and divided by the rates of chips and links.

Example:
  ringloom advise config.json --gpus 32 --hardware h100 --seq 128k
"""

from functools import partial
from typing import Any

import click
from rich.table import Table

from ringloom.advice import CLOSE
from ringloom.advising import Advice, advise
from ringloom.advising.costs import CHECKPOINTS, MATRIX_SHARE, ZEROS
from ringloom.advising.ranking import NOT_MODELLED, Ranked, Unfit
from ringloom.cli.options import TOKENS, hardware_option
from ringloom.cli.output import Number, Whole, progress, show
from ringloom.planner.masks import forms as mask_forms
from ringloom.views.tables import faint, plain_table
from ringloom.views.units import counted, in_lines, seconds, size

SHOWN = 12  # splits in the table
NAME = 17  # characters of a schedule on a line
HEADS = ("TP", "CP", "DP", "step", "attention", "matmul", "TP comm", "DP comm", "memory")
KINDS = ("", "", "", *["predicted"] * 2, *["counted"] * 4)


@click.command()
@click.argument("model", metavar="MODEL.json")
@click.option("--gpus", type=Whole(1), required=True, help="Chips in all.")
@hardware_option
@click.option("--seq", type=TOKENS, required=True, help="Tokens of a sequence, such as 128k.")
@click.option("--mask", default="causal", help=f"{mask_forms()}; joined by & and |.")
@click.option("--global-batch", type=TOKENS, help="Tokens of a step.  [default: --gpus x --seq]")
@click.option(
    "--zero",
    type=click.Choice([str(stage) for stage in ZEROS]),
    default="1",
    help="Shard optimizer states (1), and parameters and gradients (3).",
)
@click.option(
    "--checkpoint",
    type=click.Choice(CHECKPOINTS),
    default="full",
    help="Keep the inputs of layers and recompute the rest (full), or keep all.",
)
@click.option(
    "--memory",
    "room",
    type=Number(0, min_open=True),
    metavar="GIB",
    help="GiB that a chip has.  [default: all of it]",
)
@click.option(
    "--matrix-share",
    type=Number(0, 1, min_open=True),
    default=MATRIX_SHARE,
    help="Share of the chip's peak that matrix products reach.",
)
def command(model: str, zero: str, room: float | None, **given: Any) -> None:
    result = advise(
        model,
        zero=int(zero),  # type: ignore[arg-type]
        memory=None if room is None else room * 2**30,
        track=partial(progress, verb="simulating"),
        **given,
    )
    pictures = result.request.title, table(result), *notes(result)
    show(result.as_dict(), *pictures, text=result.emit or None)


def table(result: Advice) -> Table:
    """A line per split, the fastest first."""
    heads = (f"{name}\n{kind}" for name, kind in zip(HEADS, KINDS, strict=True))
    rows = [_cells(row) for row in result.rows[:SHOWN]]
    listed = plain_table(*heads, "schedule", rows=rows, numbers=slice(0, len(HEADS)), gap=1)
    listed.columns[-1].overflow = "fold"
    return listed


def _cells(row: Ranked) -> list[str]:
    times = row.step_s, row.attention_s, row.matrix_s, row.tensor_comm_s, row.gradient_comm_s
    degrees = (str(degree) for degree in (row.tensor, row.context, row.data))
    schedules = "\n".join(in_lines(name, NAME) for name in row.schedules) or "none"
    return [*degrees, *map(seconds, times), size(row.memory_bytes), schedules]


def notes(result: Advice) -> list[Any]:
    """Lines below the table: its columns, what is missing from it, and the split to use."""
    lines = [
        "TP, CP, DP: tensor, context, data parallelism; comm: collectives of TP, of gradients",
        "step: the sum of attention, which is simulated, matmul and comm, without any overlap",
        f"not modelled: {', '.join(NOT_MODELLED)}",
    ]
    if (more := len(result.rows) - SHOWN) > 0:
        lines.append(f"{counted(more, 'slower split')} not listed: --json lists all")
    if result.refused:
        one, number = result.refused[-1], counted(len(result.refused), "split")
        lines.append(f"{number} refused, such as {_degrees(one)}: {one.reason}")
    best, *others = result.rows
    batches = f"{best.micro_batches} micro-batch{'es' * (best.micro_batches > 1)}"
    advice = f"Use {_degrees(best)}: {seconds(best.step_s)} for a step of {batches}."
    if close := [_degrees(row) for row in others if row.step_s <= CLOSE * best.step_s]:
        advice += f" Too close to call: {'; '.join(close)}."
    return [*map(faint, lines), advice]


def _degrees(one: Ranked | Unfit) -> str:
    return f"TP {one.tensor}, CP {one.context}, DP {one.data}"
