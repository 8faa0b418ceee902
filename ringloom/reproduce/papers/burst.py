"""BurstAttention: traffic counted in plans, the cost table, predictions for its claims."""

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
PORT = 0.92 * 75e9  # bytes/s of a node: 600 Gb/s, at the 92% that slower ports reach
LLAMA_7B = Model("LLaMA-7B", 4096, 11008, 32, 32)


def tables() -> list[Table]:
    """Returns the tables and claims of the paper."""
    return [counted_traffic(), costs(), claims()]


def sent_by_tensor(schedule: str, pass_: Pass, ranks: int) -> dict[str, float]:
    """Returns the blocks of each tensor that a rank sends in an untrimmed pass.

    On G ranks, these are G - 1 for a tensor that is copied, and G for one that returns.
    """
    work = Workload(seq=64 * ranks, heads=4, head_dim=128, mask=Full())
    loop = plan(schedule, work, ranks, pass_=pass_, passes=NO_PASSES)
    return {name: float(sent) for name, (sent, _) in sent_blocks(loop).items()}


def per_round_trip(schedule: str, pass_: Pass, ranks: int) -> tuple[float, float]:
    """Returns (vectors, scalars) of BZN that travel, without the hop factor of each tensor.

    A copy makes G - 1 hops, a gradient that returns makes G; both count as one round trip.
    """
    vectors = scalars = 0.0
    for name, blocks in sent_by_tensor(schedule, pass_, ranks).items():
        kind = TENSORS[name]
        trips = blocks / (ranks if kind.accumulates else ranks - 1)
        vectors += trips * len(kind.vectors)
        scalars += trips * kind.scalars
    return vectors, scalars


COUNTED: tuple[tuple[str, str, Pass, tuple[int, int] | None, str], ...] = (
    ("burst forward", "burst", "forward", (2, 0), "K, V: (G-1)/G"),
    ("burst backward", "burst", "backward", (3, 2), "Q, dO, D, lse: (G-1)/G; dQ: G/G"),
    ("our ring backward", "ring", "backward", None, "K, V: (G-1)/G; dK, dV: G/G; RSA sends 6 BZNd"),
)


@table(
    "BurstAttention: elements that travel, counted",
    "counted in plans of 32 ranks, without the hop factors, which the notes give",
)
def counted_traffic() -> Iterator[Line]:
    """Yields 2BZNd forward, 3BZNd + 2BZN backward, and 4BZNd of a ring (section 3.1)."""
    for label, schedule, pass_, published, note in COUNTED:
        vectors, scalars = per_round_trip(schedule, pass_, SHAPE.devices)
        published_vectors, published_scalars = published or (None, None)
        yield Line(f"{label}, BZNd", published_vectors, vectors, 0, note)
        if published_scalars or scalars:
            yield Line(f"{label}, BZN", published_scalars, scalars, 0)


@table(
    "BurstAttention: cost table",
    "elements at B 1, Z 32, d 128, H 4096, N 128k, G 32, M 96k; flash: tiles of M/4d rows",
)
def costs() -> Iterator[Line]:
    """Yields every cell of the cost table at 128k tokens on 32 devices (table 1)."""
    cells = defaultdict[tuple[str, str], float](float)
    for record in records(DATA / "burst_costs.csv"):
        # BZN2/R2G is B Z N^2 / (R^2 G)
        numerator, _, denominator = record["term"].partition("/")
        value = float(record["coefficient"]) * _product(numerator) / _product(denominator)
        cells[record["system"], record["quantity"]] += value
    for (system, quantity), published in cells.items():
        ours = _modelled(system, quantity)
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


def _modelled(system: str, quantity: str) -> float:
    if quantity == "parameters":
        return baselines.parameters(system, SHAPE)
    if quantity == "activations":
        return baselines.activations(system, SHAPE)
    moved = baselines.traffic(system.removesuffix(" flash"), SHAPE)
    return moved.forward if quantity == "forward" else moved.backward


@table(
    "BurstAttention: claims",
    "LLaMA-7B on 128k tokens (section 1) against Megatron v3 with FlashAttention on A100, PCIe"
    " inside a node, 600 Gb/s RoCE between nodes (section 4.1); assumed: both compute the forward"
    " pass of each layer twice",
)
def claims() -> Iterator[Line]:
    """Yields predictions of the claims; the two speedups on 32 GPUs contradict each other."""
    burst, tensor = (baselines.traffic(n, SHAPE).total for n in ("burst", "tensor parallel"))
    saved, note = 100 * (1 - burst / tensor), "5 + 2/d against 8 BZNd"
    yield Line("traffic saved (%)", 40, saved, 0, note, arithmetic=True, points=True)
    on_32 = speedup(32, 131072)
    yield Line("speedup on 32 GPUs, abstract", 1.37, on_32, 2, "contradicts the next row")
    yield Line("speedup on 32 GPUs, section 4.3", 2.0, on_32, 2, "nearly 2.0")
    yield Line("speedup on 8 GPUs, section 1", 2.0, speedup(8, 131072), 2)


def speedup(ranks: int, seq: int) -> float:
    """Returns the predicted iteration time of Megatron v3 over that of burst.

    Megatron's GPUs share the port of their node; a ring uses the whole port, for one hop.
    """
    base = hardware("a100-pcie")
    whole_port = base.changed({"inter.bandwidth": PORT})
    shared_port = base.changed({"inter.bandwidth": PORT / base.ranks_per_node})
    megatron = Setting(LLAMA_7B, shared_port, ranks, seq, "megatron-v3")
    return iteration(megatron) / iteration(Setting(LLAMA_7B, whole_port, ranks, seq, "burst"))
