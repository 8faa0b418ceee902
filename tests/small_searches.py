"""Small workloads of the corpus's families, and searches of them that name no schedule.

Their machines are presets that compute and send so slowly that a few hundred tokens take as long as
as many thousands, so that work is shared out, and calls and messages are few beside it.
"""

import random
from dataclasses import dataclass, replace
from typing import Any

import corpus
import pytest

import ringloom as rl
from ringloom.planner.plans import Passes, Plans
from ringloom.searching.trying import Search

SLOWER = 2000  # times: of memory and links, as many tokens as thousands take elsewhere
SMALL = {
    "WINDOW": 40,
    "CHUNK": 50,
    "MEDIAN": 20,
    "SHORTEST": 1,
    "CELLS": 6,
    "DRAWN": 1,
    "COLUMNS": 1,
}
LENGTHS = "WINDOW", "CHUNK", "MEDIAN", "SHORTEST"  # of those, in tokens
FAMILIES = [*corpus.MASKS]
PRESETS = "h100", "a100-pcie", "tpu-v5p", "mi300x"
HEADS = (4, 4), (4, 2), (6, 3), (5, 1), (8, 2)  # query heads, KV heads


@dataclass(frozen=True)
class Searched:
    """One search: a workload on so many ranks of a machine."""

    family: str
    work: rl.Workload
    ranks: int
    machine: rl.Hardware
    scenario: rl.Scenario


def slow(preset: str, node: int = 8) -> rl.Hardware:
    """A machine on which small workloads are worth sharing out, of nodes of so many ranks."""
    fast = rl.hardware(preset)
    less = {key: fast[key] / SLOWER**1.5 for key in fast.constants if key.startswith("peak.")}
    for key in ("memory.bandwidth", "intra.bandwidth", "inter.bandwidth"):
        less[key] = fast[key] / SLOWER
    tiles = dict.fromkeys((f"attention.{x}" for x in ("tile_q", "tile_kv", "blocks")), 4)
    return fast.changed(less | tiles | {"node.ranks": node})


def mask_of(family: str, total: int, seed: int = 0, times: int = 1) -> rl.Mask:
    """A mask of the corpus with small windows, chunks and documents, or `times` as long ones."""
    cells, longer = SMALL["CELLS"], {name: times * SMALL[name] for name in LENGTHS}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**SMALL, **longer, "SEED": seed}.items():
            patch.setattr(corpus, name, value)
        return corpus.MASKS[family](-(-total // cells) * cells if family == "blocks" else total)


def drawn(number: int, times: int = 1) -> Searched:
    """One of endlessly many: families in turn, any length, heads, ranks, machine and speeds.

    With `times` it has that many times as many tokens, and machines are as quick as presets say.
    """
    draw = random.Random(number)
    family, ranks = FAMILIES[number % 9], draw.randint(2, 9)
    total = draw.randint(90 * times, 250 * times)
    heads, kv_heads = draw.choice(HEADS)
    work = rl.Workload(
        seq=total // corpus.QUERIES.get(family, 1),
        kv_seq=total,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=draw.choice([8, 16]),
        mask=mask_of(family, total, number, times),
    )
    speeds = {draw.randrange(ranks): 0.4} if draw.random() < 0.4 else None
    nodes = [n for n in (2, 3, 4) if ranks % n == 0] + [16]
    preset, node = draw.choice(PRESETS), draw.choice(nodes)
    machine = (
        slow(preset, node) if times == 1 else rl.hardware(preset).changed({"node.ranks": node})
    )
    return Searched(family, work, ranks, machine, rl.Scenario(speeds=speeds))


def search_freely(one: Searched, pass_: Passes = "both", **options: Any) -> rl.SearchResult:
    """Searches without named schedules: the best of the plans that it makes itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Search, "seeds", lambda _: [])
        return rl.search(
            one.work, one.ranks, one.machine, pass_=pass_, scenario=one.scenario, **options
        )


def in_float64(plans: Plans) -> Plans:
    """The same plans for inputs in double precision, in which a missing pair is no rounding."""
    work = replace(plans.workload, dtype="float64")
    return Plans(**{plan.pass_: replace(plan, workload=work) for plan in plans})


def _program(family: str, ranks: int, kv_heads: int, preset: str, node: int) -> Searched:
    queries, mask = 240 // corpus.QUERIES.get(family, 1), mask_of(family, 240)
    work = rl.Workload(queries, 240, heads=4, kv_heads=kv_heads, head_dim=8, mask=mask)
    return Searched(family, work, ranks, slow(preset, node), rl.Scenario(speeds={1: 0.4}))


PROGRAMS = {  # what is found for them is emitted
    "documents": _program("documents", 8, 2, "h100", 4),
    "window": _program("window", 4, 4, "h100", 8),
    "blocks": _program("blocks", 4, 4, "tpu-v5p", 2),
    "cache": _program("cache", 4, 2, "h100", 8),
}
