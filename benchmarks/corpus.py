"""The corpus: attention that planners are judged by, 9 mask families on 7 machines.

    CASES               every family x machine x tokens per rank x pass, in a fixed order
    Case.work           its workload, drawn from SEED where anything is drawn
    Case.where          its machine: preset, ranks, and what is slow
    comparison(case)    what `ringloom compare` says of it

The sizes are those of Llama 3 8B: 32 query heads, 8 KV heads, 128 elements each, in bfloat16.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product

import ringloom as rl
from ringloom.planner.ir import Pass

SEED = 2026
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
TOKENS = 8192, 32768  # per rank
PASSES: tuple[Pass, ...] = ("forward", "backward")

WINDOW = 4096  # keys before a query, as in Mistral 7B
CHUNK = 8192  # tokens that see only each other, as in Llama 4
MEDIAN, SPREAD = 2048, 1.4  # tokens of a document: log-normal, so one in 20 is ten times longer
SHORTEST, LARGEST_SHARE = 64, 3  # tokens, and a document has at most a third of all tokens
CELLS, DRAWN, COLUMNS = 32, 5, 3  # of a block grid: its side, cells drawn per row, full columns


@dataclass(frozen=True)
class Machine:
    """Chips by the name of their preset, how many there are, and what is not ordinary."""

    hardware: str
    ranks: int
    scenario: rl.Scenario = field(default_factory=rl.Scenario)


MACHINES = {
    "h100-8": Machine("h100", 8),
    "h100-16": Machine("h100", 16),
    "h100-32": Machine("h100", 32),
    "a100-pcie-8": Machine("a100-pcie", 8),
    "tpu-v5p-16": Machine("tpu-v5p", 16),
    "slow-rank": Machine("h100", 8, rl.Scenario(speeds={3: 0.5})),
    "slow-link": Machine("a100-nvlink", 8, rl.Scenario(links={(6, 7): 0.1})),
}


def documents(total: int) -> rl.Mask:
    """Packed documents, causal: many short ones, a few long ones; the last takes what is left."""
    draw, lengths, left = random.Random(SEED + total), list[int](), total
    while left:
        drawn = max(SHORTEST, int(MEDIAN * draw.lognormvariate(0, SPREAD)))
        lengths.append(min(drawn, left, total // LARGEST_SHARE))
        left -= lengths[-1]
    return rl.Causal() & rl.Documents(tuple(lengths))


def grid(total: int) -> rl.Mask:
    """Cells on the diagonal, beside it and in the first column, drawn ones, and full columns."""
    draw = random.Random(SEED)
    columns = {0, *draw.sample(range(CELLS), COLUMNS)}
    rows = [
        columns | {row, max(row - 1, 0), *draw.sample(range(CELLS), DRAWN)} for row in range(CELLS)
    ]
    cells = tuple(tuple(column in row for column in range(CELLS)) for row in rows)
    return rl.Blocks(cells, total // CELLS)


def tree(total: int) -> rl.Mask:
    """A prompt and three branches, an eighth of the tokens each; each branch has three leaves."""
    eighth = total // 8
    lengths, parents = [eighth], list[int | None]([None])
    leaves, rest = divmod(total - 4 * eighth, 9)
    for _ in range(3):
        branch = len(lengths)
        lengths += [eighth, leaves, leaves, leaves]
        parents += [0, branch, branch, branch]
    lengths[-1] += rest
    return rl.Tree(tuple(lengths), tuple(parents))


MASKS: dict[str, Callable[[int], rl.Mask]] = {  # of so many tokens in all
    "full": lambda total: rl.Full(),
    "causal": lambda total: rl.Causal(),
    "window": lambda total: rl.Causal() & rl.Window(WINDOW),
    "documents": documents,
    "prefix": lambda total: rl.Prefix(total // 4),
    "blocks": grid,
    "chunks": lambda total: rl.Causal() & rl.Chunks(CHUNK),
    "tree": tree,
    "cache": lambda total: rl.Causal(),
}
QUERIES = {"cache": 4}  # one query for so many keys; elsewhere as many queries as keys


@dataclass(frozen=True)
class Case:
    """One pass of one workload on one machine, by their names."""

    mask: str
    machine: str
    tokens: int  # keys per rank
    pass_: Pass

    def __str__(self) -> str:
        return f"{self.machine}/{self.mask}/{self.tokens // 1024}k/{self.pass_}"

    @property
    def where(self) -> Machine:
        return MACHINES[self.machine]

    @property
    def work(self) -> rl.Workload:
        total = self.tokens * self.where.ranks
        return rl.Workload(
            seq=total // QUERIES.get(self.mask, 1),
            kv_seq=total,
            heads=HEADS,
            kv_heads=KV_HEADS,
            head_dim=HEAD_DIM,
            mask=MASKS[self.mask](total),
        )


CASES = tuple(
    Case(mask, machine, tokens, pass_)
    for tokens, pass_, machine, mask in product(TOKENS, PASSES, MACHINES, MASKS)
)


def comparison(case: Case) -> rl.Comparison:
    """Compare the usual schedules on a case, as `ringloom compare` does."""
    machine = case.where
    return rl.compare(
        case.work, machine.ranks, machine.hardware, pass_=case.pass_, scenario=machine.scenario
    )
