"""Ring Attention: the smallest block that hides the ring, activations, FLOPs, longest contexts."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

from ringloom.csv_rows import Record, records
from ringloom.planner.optional import needing
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.reproduce import DATA
from ringloom.reproduce.models.transformers import (
    Cluster,
    Model,
    blocks_held,
    layer,
    longest_context,
    training_need,
)
from ringloom.reproduce.tables import Line, Table, not_compared, table

MODELS = {  # LLaMA shapes
    "3B": Model("3B", 3200, 8640, 26, 32),
    "7B": Model("7B", 4096, 11008, 32, 32),
    "13B": Model("13B", 5120, 13824, 40, 40),
    "30B": Model("30B", 6656, 17920, 60, 52),
}
GIB, GB = 2**30, 1e9
CLUSTERS = {  # tensor parallel in a node of GPUs, over two chips of a pod: assumed
    c.name: c
    for c in (
        Cluster("8x A100 NVLink", 8, 80 * GB, 8),
        Cluster("32x A100 InfiniBand", 32, 80 * GB, 8),
        Cluster("TPUv3-512", 256, 16 * GIB, 2),
        Cluster("TPUv4-512", 512, 32 * GIB, 2),
        Cluster("TPUv5e-256", 256, 16 * GB, 2),
    )
}
BASELINES = {
    "vanilla": "vanilla_k",
    "memory-efficient": "memory_efficient_k",
    "blockwise FFN": "memory_efficient_and_ffn_k",
}
TOTAL = "published discrepancy: the total has h where its half has n"
LEFT_OUT = (("utilisation, section 5.2", "no numbers of it are in the text that we have"),)
INFINIBAND = "published discrepancy: 312 Tflop/s over 12.5 GB/s is 24.96 thousand"


def tables() -> list[Table]:
    """All tables of the paper that we have."""
    return [
        *(min_blocks(), activations(), flops(), ring_contexts(), baseline_contexts()),
        not_compared("Ring Attention", LEFT_OUT),
    ]


@table(
    "Ring Attention: smallest block that hides the ring (k tokens)",
    "c = F / B: 4 d c^2 flop of a block take as long as 4 c d bytes of K and V",
)
def min_blocks() -> Iterator[Line]:
    """Block c = F / B and sequence 6c, in thousands of tokens (Ring Attention, table 2)."""
    solved = needing("formulas", "ringloom.reproduce.formulas.symbolic").hiding_block()
    for record in records(DATA / "ring_min_block.csv"):
        rates = {"F": float(record["tflops"]), "B": float(record["interconnect_gb_s"])}
        sizes = {**rates, "e": 2, "g": 1, "h": 1}  # 16 bit, as many KV heads as query heads
        block = float(solved.subs({each: sizes[each.name] for each in solved.free_symbols}))
        note = INFINIBAND if record["host"] == "A100 InfiniBand" else ""
        for name, column, blocks in (
            ("block", "min_block_thousands", 1),
            ("sequence", "min_seq_thousands", 6),
        ):
            published = float(record[column])
            what = f"{record['host']} {name}"
            yield Line(what, published, blocks * block, 1, note, arithmetic=True)


HALVES = (  # Ring Attention, table 1, as printed: attention, FFN, total
    ("vanilla", ("2 b n s^2", "8 b s h", "2 b h s^2")),
    ("memory-efficient", ("2 b s h + 4 b c h", "8 b s h", "8 b s h")),
    ("blockwise FFN", ("2 b s h", "2 b s h", "2 b s h")),
    ("ring", ("6 b c h", "2 b c h", "6 b c h")),
)


@table(
    "Ring Attention: activations of a layer",
    "b s h bytes, of the ring b c h, at 128k tokens on 8 ranks, width 4096, n 32 heads; the plan:"
    " Q, output, K and V current and arriving",
)
def activations() -> Iterator[Line]:
    """The two halves of a layer and their printed total; then of ring, as planned."""
    width, heads, seq, ranks = 4096, 32, 131072, 8
    block = seq // ranks
    sizes = {"b": 1, "h": width, "n": heads, "s": seq, "c": block}
    for scheme, printed in HALVES:
        halves = layer(scheme, 1, seq, width, heads, block)
        unit = (block if scheme == "ring" else seq) * width
        for what, text, ours in zip(
            ("attention", "FFN", "total"), printed, (*halves, max(halves)), strict=True
        ):
            note = TOTAL if (scheme, what) == ("vanilla", "total") else ""
            published = _formula(text, sizes) / unit
            name = f"{scheme}, {what}: {text}"
            yield Line(name, published, ours / unit, 1, note, arithmetic=True)
    work = Workload(seq=seq, heads=heads, head_dim=width // heads)
    counted = float(blocks_held(plan("ring", work, ranks)))
    yield Line("ring, counted in the plan", 6.0, counted, 0, "blocks of b c h")


def _formula(text: str, sizes: Mapping[str, int]) -> float:
    """The value of a sum of products such as 2 b s h + 4 b c h."""
    total = 0
    for term in text.split(" + "):
        number, *factors = term.split()
        powers = (factor.partition("^") for factor in factors)
        total += int(number) * prod(sizes[name] ** int(power or 1) for name, _, power in powers)
    return float(total)


@table(
    "Ring Attention: cost of a dataset at longer context",
    "(6h + s2) / (6h + s1) times as much as at s1 of 4k tokens",
)
def flops() -> Iterator[Line]:
    """Training flop per dataset of longer sequences, per width h (Ring Attention, figure 5).

    A sequence takes 24 b s h^2 + 4 b s^2 h flop per layer (Ring Attention, B).
    """

    def cost(width: int, seq: int) -> float:
        return (6 * width + seq) / (6 * width + 4096)

    ours = cost(12288, 4096 * 3072)
    yield Line("12M tokens, width 12288", 162.6, ours, 1, arithmetic=True)
    for width in (4096, 5140, 7168, 8192):
        what, note = f"1M tokens, width {width}", "figure 5: 20 to 40"
        yield Line(what, None, cost(width, 2**20), 1, note, arithmetic=True)


@table(
    "Ring Attention: longest context with ring (k tokens)",
    "by memory, as for the baselines below, the sequence shared by all devices; each published"
    " length is that of the best baseline times the devices (of TPUv3-512: 256), which needs more"
    " memory than there is",
)
def ring_contexts() -> Iterator[Line]:
    """Ring's longest contexts from the memory model."""
    for record in records(DATA / "ring_max_context.csv"):
        yield _context(record, "ring", float(record["ring_k"]))


def baseline_contexts() -> Table:
    """Longest contexts of the baselines from the memory model."""
    lines = [
        _context(record, scheme, float(record[column]))
        for record in records(DATA / "ring_max_context.csv")
        for scheme, column in BASELINES.items()
    ]
    near = sum(map(within_two, lines))
    note = (
        f"{near} of {len(lines)} within a factor of 2; assumed: all in 32 bit, weight and two Adam"
        " moments over all devices, tensor parallel over 8 GPUs of a node or 2 chips of a pod"
    )
    return Table("Ring Attention: longest context of baselines (k tokens)", lines, note)


def within_two(line: Line) -> bool:
    """Returns True where ours is within a factor of two of the published number."""
    return line.error is not None and 0.5 <= 1 + line.error <= 2


def _context(record: Record, scheme: str, published: float) -> Line:
    model, cluster = MODELS[record["model"]], CLUSTERS[record["cluster"]]
    ours = longest_context(scheme, model, cluster) / 1024
    which = "" if scheme == "ring" else f" {scheme}"
    line = Line(f"{record['cluster']} {record['model']}{which}", published, ours, 0)
    return line if within_two(line) else replace(line, note=_why(scheme, model, cluster, line))


def _why(scheme: str, model: Model, cluster: Cluster, line: Line) -> str:
    """Say what the model books at the published length, and what follows."""
    need = training_need(scheme, model, cluster, int((line.published or 0) * 1024))
    parts = ", ".join(f"{size / GB:.1f} {name}" for name, size in need._asdict().items())
    booked = f"needs {sum(need) / GB:.1f} of {cluster.memory / GB:.0f} GB there ({parts})"
    if scheme == "ring":
        return booked
    if (line.error or 0) < 0:
        return f"{booked}: the run kept less, as with 16-bit or offloaded checkpoints"
    return f"{booked}: something else filled the rest, as padded or copied scores"
