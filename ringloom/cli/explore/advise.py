"""Rank splits of GPUs into tensor, context and data parallelism.

MODEL.json is the config.json of a Hugging Face model. The command ranks the splits that fit in
memory by the predicted time of a step. It simulates attention with the fastest schedule of each
split. Other flops and bytes are counted and divided by the rates of chips and links.

Example:
  ringloom advise config.json --gpus 32 --hardware h100 --seq 128k
"""

from functools import partial
from typing import Any

import click
from rich.table import Table

from ringloom.advising import Advice, advise
from ringloom.advising.costs import CHECKPOINTS, MATRIX_SHARE, ZEROS
from ringloom.advising.ranking import NOT_MODELLED, RankedSplit, RefusedSplit
from ringloom.cli.options import TOKENS, hardware_option
from ringloom.cli.output import Integer, Number, progress, show
from ringloom.planner.masks import forms as mask_forms
from ringloom.recommendation import CLOSE
from ringloom.views.tables import faint, plain_table
from ringloom.views.units import counted, in_lines, seconds, size

MAX_LISTED = 12  # splits in the table
NAME_WIDTH = 17  # characters of the schedule column
HEADINGS = ("TP", "CP", "DP", "step", "attention", "matmul", "TP comm", "DP comm", "memory")
KINDS = ("", "", "", *["predicted"] * 2, *["counted"] * 4)


@click.command()
@click.argument("model", metavar="MODEL.json")
@click.option("--gpus", type=Integer(1), required=True, help="Total number of chips.")
@hardware_option
@click.option("--seq", type=TOKENS, required=True, help="Tokens per sequence, such as 128k.")
@click.option(
    "--mask",
    default="causal",
    help=f"Any of {mask_forms()}, combined with &, | and parentheses.",
)
@click.option("--global-batch", type=TOKENS, help="Tokens per step.  [default: --gpus x --seq]")
@click.option(
    "--zero",
    type=click.Choice([str(stage) for stage in ZEROS]),
    default="1",
    help="ZeRO stage; 1: shard optimizer states; 3: also parameters and gradients.",
)
@click.option(
    "--checkpoint",
    type=click.Choice(CHECKPOINTS),
    default="full",
    help="Activations to keep; full: layer inputs only, the rest is recomputed; none: all.",
)
@click.option(
    "--memory",
    "memory_limit",
    type=Number(0, min_open=True),
    metavar="GIB",
    help="Memory per chip.  [default: all of the chip's memory]",
)
@click.option(
    "--matrix-share",
    type=Number(0, 1, min_open=True),
    default=MATRIX_SHARE,
    help="Fraction of the chip's peak rate that matrix products reach.",
)
def command(model: str, zero: str, memory_limit: float | None, **options: Any) -> None:
    result = advise(
        model,
        zero=int(zero),  # type: ignore[arg-type]
        memory=None if memory_limit is None else memory_limit * 2**30,
        track=partial(progress, verb="simulating"),
        **options,
    )
    pictures = result.request.title, table(result), *notes(result)
    show(result.as_dict(), *pictures, text=result.emit or None)


def table(result: Advice) -> Table:
    """Returns a row per split, the fastest first."""
    heads = (f"{name}\n{kind}" for name, kind in zip(HEADINGS, KINDS, strict=True))
    rows = [_cells(row) for row in result.rows[:MAX_LISTED]]
    listed = plain_table(*heads, "schedule", rows=rows, numbers=slice(0, len(HEADINGS)), gap=1)
    listed.columns[-1].overflow = "fold"
    return listed


def _cells(row: RankedSplit) -> list[str]:
    times = row.step_s, row.attention_s, row.matrix_s, row.tensor_comm_s, row.gradient_comm_s
    degrees = (str(degree) for degree in (row.tensor, row.context, row.data))
    schedules = "\n".join(in_lines(name, NAME_WIDTH) for name in row.schedules) or "none"
    return [*degrees, *map(seconds, times), size(row.memory_bytes), schedules]


def notes(result: Advice) -> list[Any]:
    """Returns the lines below the table: its columns, its limits, and the split to use."""
    lines = [
        "TP, CP, DP: tensor, context and data parallelism",
        "TP comm: all-reduces of tensor parallelism; DP comm: gradients and sharded parameters",
        "step: the sum of attention, matmul and both comm columns, without overlap",
        f"not modelled: {', '.join(NOT_MODELLED)}",
    ]
    if (hidden := len(result.rows) - MAX_LISTED) > 0:
        lines.append(f"{counted(hidden, 'slower split')} not listed; --json lists all")
    if result.refused:
        example, number = result.refused[-1], counted(len(result.refused), "split")
        lines.append(f"{number} refused, such as {_degrees(example)}: {example.reason}")
    best, *others = result.rows
    batches = f"{best.micro_batches} micro-batch{'es' * (best.micro_batches > 1)}"
    advice = f"Use {_degrees(best)}: {seconds(best.step_s)} for a step of {batches}."
    if close := [_degrees(row) for row in others if row.step_s <= CLOSE * best.step_s]:
        advice += f" Too close to call: {'; '.join(close)}."
    return [*map(faint, lines), advice]


def _degrees(split: RankedSplit | RefusedSplit) -> str:
    return f"TP {split.tensor}, CP {split.context}, DP {split.data}"
