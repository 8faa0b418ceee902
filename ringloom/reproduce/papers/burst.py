"""BurstAttention: traffic counted from plans, the cost table from models, the claims predicted."""

import re
from collections import defaultdict
from collections.abc import Iterator
from math import prod

from ringloom.csv_rows import records
from ringloom.planner.ir import TENSORS, Pass
from ringloom.planner.masks import Full
from ringloom.planner.planning import NO_PASSES, plan
from ringloom.planner.workload import Workload
from ringloom.reproduce import DATA
from ringloom.reproduce.formulas.counts import sent_blocks
from ringloom.reproduce.models import baselines
from ringloom.reproduce.models.baselines import Shape
from ringloom.reproduce.models.training import Setting, iteration
from ringloom.reproduce.models.transformers import Model
from ringloom.reproduce.tables import Line, Table, table
from ringloom.simulator.hardware import hardware

SHAPE = Shape(devices=32, batch=1, heads=32, head_dim=128, seq=131072, width=4096, sram=98304)
PORT = 0.92 * 75e9  # bytes/s of a node: 600 Gb/s, of which 92% is reached, as of slower ports
LLAMA_7B = Model("LLaMA-7B", 4096, 11008, 32, 32)


def tables() -> list[Table]:
    """All tables and claims of the paper that we have."""
    return [counted_traffic(), costs(), claims()]


def hops(schedule: str, pass_: Pass, ranks: int) -> dict[str, float]:
    """Blocks of each tensor that a rank sends in a pass: G - 1 for copies, G for what returns.

    In the whole loop, nothing trimmed.
    """
    work = Workload(seq=64 * ranks, heads=4, head_dim=128, mask=Full())
    loop = plan(schedule, work, ranks, pass_=pass_, passes=NO_PASSES)
    return {name: float(every) for name, (every, _) in sent_blocks(loop).items()}


def per_circle(schedule: str, pass_: Pass, ranks: int) -> tuple[float, float]:
    """(vectors, scalars) of BZN that go around, each tensor's own hop factor taken out.

    A copy goes G - 1 of G hops, a gradient that returns all G; both count as one circle.
    """
    vectors = scalars = 0.0
    for name, blocks in hops(schedule, pass_, ranks).items():
        kind = TENSORS[name]
        circles = blocks / (ranks if kind.accumulates else ranks - 1)
        vectors += circles * len(kind.vectors)
        scalars += circles * kind.scalars
    return vectors, scalars


COUNTED: tuple[tuple[str, str, Pass, tuple[int, int] | None, str], ...] = (
    ("burst forward", "burst", "forward", (2, 0), "K, V: (G-1)/G"),
    ("burst backward", "burst", "backward", (3, 2), "Q, dO, D, lse: (G-1)/G; dQ: G/G"),
    ("our ring backward", "ring", "backward", None, "K, V: (G-1)/G; dK, dV: G/G; not RSA, of 6"),
)


@table(
    "BurstAttention: elements that travel, counted",
    "counted from the plans of 32 ranks; the hop factor of each tensor is beside it",
)
def counted_traffic() -> Iterator[Line]:
    """2BZNd forward, 3BZNd + 2BZN backward, and a ring's 4BZNd (BurstAttention, section 3.1)."""
    for what, schedule, pass_, published, note in COUNTED:
        vectors, scalars = per_circle(schedule, pass_, SHAPE.devices)
        wide, narrow = published or (None, None)
        yield Line(f"{what}, BZNd", wide, vectors, 0, note)
        if narrow or scalars:
            yield Line(f"{what}, BZN", narrow, scalars, 0)


@table(
    "BurstAttention: cost table",
    "elements at B 1, Z 32, d 128, H 4096, N 128k, G 32, M 96k; flash: tiles of M/4d rows",
)
def costs() -> Iterator[Line]:
    """Every cell of the cost table at 128k tokens on 32 devices (BurstAttention, table 1)."""
    cells = defaultdict[tuple[str, str], float](float)
    for record in records(DATA / "burst_costs.csv"):
        above, _, below = record["term"].partition("/")  # BZN2/R2G is B Z N^2 / (R^2 G)
        value = float(record["coefficient"]) * _product(above) / _product(below)
        cells[record["system"], record["quantity"]] += value
    for (system, quantity), published in cells.items():
        ours = _formula(system, quantity)
        yield Line(f"{system}, {quantity}", published, ours, 0, arithmetic=True)


def _product(letters: str) -> float:
    return prod(SIZES[letter] ** int(power or 1) for letter, power in re.findall(POWER, letters))


POWER = r"([A-Za-z])(\d?)"
SIZES: dict[str, float] = {
    "B": SHAPE.batch,
    "Z": SHAPE.heads,
    "d": SHAPE.head_dim,
    "N": SHAPE.seq,
    "H": SHAPE.width,
    "G": SHAPE.devices,
    "R": SHAPE.rows,
}


def _formula(system: str, quantity: str) -> float:
    if quantity == "parameters":
        return baselines.parameters(system, SHAPE)
    if quantity == "activations":
        return baselines.activations(system, SHAPE)
    moved = baselines.traffic(system.removesuffix(" flash"), SHAPE)
    return moved.forward if quantity == "forward" else moved.backward


@table(
    "BurstAttention: claims",
    "LLaMA-7B on 128k tokens (section 1) against Megatron v3 with FlashAttention on A100, PCIe"
    " inside a node, 600 Gb/s RoCE between nodes (section 4.1); assumed: both run each layer's"
    " forward pass twice",
)
def claims() -> Iterator[Line]:
    """Predict what the paper promises; of its two speedups on 32 GPUs, no model can meet both."""
    burst, tensor = (baselines.traffic(n, SHAPE).total for n in ("burst", "tensor parallel"))
    saved, note = 100 * (1 - burst / tensor), "5 + 2/d against 8 BZNd"
    yield Line("traffic saved (%)", 40, saved, 0, note, arithmetic=True, points=True)
    many = gain(32, 131072)
    yield Line("speedup on 32 GPUs, abstract", 1.37, many, 2, "contradicts the next")
    yield Line("speedup on 32 GPUs, section 4.3", 2.0, many, 2, "nearly 2.0")
    yield Line("speedup on 8 GPUs, section 1", 2.0, gain(8, 131072), 2)


def gain(ranks: int, seq: int) -> float:
    """Predicted iteration time of Megatron v3 over that of burst.

    A ring leaves each node once, so its hop has the port that all GPUs of the node share.
    """
    on = hardware("a100-pcie")
    shared, whole = (on.changed({"inter.bandwidth": PORT / n}) for n in (on.ranks_per_node, 1))
    megatron = Setting(LLAMA_7B, shared, ranks, seq, "megatron-v3")
    return iteration(megatron) / iteration(Setting(LLAMA_7B, whole, ranks, seq, "burst"))
