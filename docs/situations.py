"""Writes the table of situations, with the schedule that `ringloom compare` recommends for each."""

import io
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

from markdown import Lines, table
from pages import FENCE

import ringloom as rl
from ringloom.cli import command_of, main
from ringloom.planner.errors import PlanError
from ringloom.planner.planning import find_schedule

MAX_LISTED = 4  # schedules too close to call that a cell lists; all others are counted
HEADS = "--heads 32 --kv-heads 8"
TREE = "tree:8192,1024,1024,1024,1024/-,0,0,0,0"
SITUATIONS = {
    "One node of H100s, training": f"--ranks 8 --seq 128k {HEADS} --hardware h100 --pass both",
    "One node of H100s, prefill": f"--ranks 8 --seq 128k {HEADS} --hardware h100",
    "Two nodes of H100s, training": f"--ranks 16 --seq 256k {HEADS} --hardware h100 --pass both",
    "A100s on PCIe": f"--ranks 8 --seq 32k {HEADS} --hardware a100-pcie --pass both",
    "RTX 4090s on PCIe": f"--ranks 8 --seq 32k {HEADS} --hardware rtx-4090",
    "MI300X, each linked to all others": f"--ranks 8 --seq 64k {HEADS} --hardware mi300x",
    "TPU v5e": f"--ranks 8 --seq 64k {HEADS} --hardware tpu-v5e",
    "A single KV head (MQA)": "--ranks 8 --seq 128k --heads 32 --kv-heads 1 --hardware h100",
    "A KV head per query head (MHA)": "--ranks 8 --seq 128k --heads 32 --hardware h100",
    "Six ranks, which do not divide the heads": f"--ranks 6 --seq 96k {HEADS} --hardware h100",
    "No mask": "--ranks 8 --seq 64k --heads 16 --hardware h100 --mask full",
    "A sliding window": (
        f'--ranks 8 --seq 128k {HEADS} --hardware h100 --mask "causal & window:4096"'
    ),
    "A window and a few global tokens": (
        f'--ranks 8 --seq 64k {HEADS} --hardware h100 --mask "causal & (window:4096 | global:64)"'
    ),
    "Packed documents of different lengths": (
        f'--ranks 8 --seq 64k {HEADS} --hardware h100 --mask "causal & documents:40000,20000,5536"'
    ),
    "Packed documents of equal length": (
        f"--ranks 8 --seq 64k {HEADS} --hardware h100"
        ' --mask "causal & documents:16384,16384,16384,16384"'
    ),
    "Chunks, as in Llama 4": (
        f'--ranks 8 --seq 128k {HEADS} --hardware h100 --mask "causal & chunks:8k"'
    ),
    "Four answers to one prompt": f"--ranks 8 --seq 12k {HEADS} --hardware h100 --mask {TREE}",
    "Decoding one token": f"--ranks 8 --seq 1 --kv-seq 256k {HEADS} --hardware h100",
    "Chunked prefill behind a cache": f"--ranks 8 --seq 4k --kv-seq 256k {HEADS} --hardware h100",
}


@dataclass(frozen=True)
class Answer:
    """The answer of compare: the fastest schedule, the schedules that tie with it, and the reason.

    `names` are the schedules of all rows.
    """

    situation: str
    options: str
    fastest: str
    ties: tuple[str, ...]
    why: str
    names: tuple[str, ...]


def answer(situation: str, options: str) -> Answer:
    """Runs `ringloom compare` with some options.

    Raises AssertionError if the command fails, or prints a name that `--schedules` does not accept.
    """
    output = io.StringIO()
    with redirect_stdout(output):
        status = main(["compare", *shlex.split(options), "--json"])
    assert status == 0, f"ringloom compare {options}"
    result: dict[str, Any] = json.loads(output.getvalue())
    names = tuple(row["schedule"] for row in result["rows"])
    assert are_accepted(options, names), f"--schedules does not accept {names} of {options}"
    advice = result["recommendation"]
    return Answer(
        situation, options, advice["schedule"], tuple(advice["close_to"]), reason(advice), names
    )


def are_accepted(options: str, names: Sequence[str]) -> bool:
    """Returns True if the option `--schedules` reads names as the same schedules."""
    words = [*shlex.split(options), "--schedules", ",".join(names)]
    with command_of("compare").make_context("compare", words) as context:
        schedules: list[str] = context.params["schedules"]
    return schedules == list(names) and all(map(is_schedule, schedules))


def is_schedule(name: str) -> bool:
    """Returns True if a name, without options such as --trim, is the name of a schedule."""
    try:
        find_schedule(name.partition(" --")[0])
    except PlanError:
        return False
    return True


def reason(advice: Mapping[str, Any]) -> str:
    """Returns why the next schedule is slower, without the name of the fastest one."""
    text = str(advice["reason"]).removeprefix(str(advice["answer"])).strip()
    text = text.replace(f" as long as {advice['schedule']}:", " as long:")
    return text.replace(f"in {advice['schedule']}", "in the fastest")


def situations() -> Lines:
    """Writes the table, a row per situation."""
    yield from table(
        ("situation", "fastest schedule"), (_row(answer(*pair)) for pair in SITUATIONS.items())
    )


def find_unsupported(page: str, rows: str) -> list[str]:
    """Returns the schedules that the prose of a page names, but no row of the table."""
    recommended, supported = (_schedules(text) for text in (FENCE.sub("", page), rows))
    return sorted(recommended - supported)


def _schedules(text: str) -> set[str]:
    words = re.findall(r"`([^`\n]+)`", text)
    return {re.split("[: ]", word)[0] for word in words} & rl.SCHEDULES.keys()


def _row(row: Answer) -> tuple[str, str]:
    unlisted = len(row.ties) - MAX_LISTED
    ties = ", ".join(f"`{name}`" for name in row.ties[:MAX_LISTED])
    ties += f" and {unlisted} more" if unlisted > 0 else ""
    tied = f"Too close to call: {ties}.<br>" if ties else ""
    return f"{row.situation}<br>`{row.options}`", f"**`{row.fastest}`**<br>{tied}{row.why}"
