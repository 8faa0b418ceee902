"""Ring Attention: smallest blocks that hide transfers, activations, flop, longest contexts."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

from ringloom.csv_rows import Record, records
from ringloom.planner.optional import import_optional
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload
from ringloom.reproduce import DATA
from ringloom.reproduce.models.transformers import (
    Cluster,
    Model,
    Need,
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
CLUSTERS = {  # assumed: tensor parallelism over a node of 8 GPUs, or over two chips of a TPU pod
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
TOTAL = "published discrepancy: the total has h where the attention half has n"
MISSING = (("utilisation, section 5.2", "its numbers are not in our copy of the text"),)
INFINIBAND = "published discrepancy: 312 Tflop/s / 12.5 GB/s = 24.96 thousand"


def tables() -> list[Table]:
    """Returns the tables of the paper."""
    return [
        *(min_blocks(), activations(), flops(), ring_contexts(), baseline_contexts()),
        not_compared("Ring Attention", MISSING),
    ]


@table(
    "Ring Attention: smallest block that hides the ring (k tokens)",
    "c = F / B: computing 4 d c^2 flop takes as long as sending 4 c d bytes of K and V",
)
def min_blocks() -> Iterator[Line]:
    """Yields block c = F / B and sequence 6c, in thousands of tokens (table 2)."""
    formula = import_optional("formulas", "ringloom.reproduce.formulas.symbolic").hiding_block()
    for record in records(DATA / "ring_min_block.csv"):
        rates = {"F": float(record["tflops"]), "B": float(record["interconnect_gb_s"])}
        sizes = {**rates, "e": 2, "g": 1, "h": 1}  # 16 bit; as many KV heads as query heads
        block = float(formula.subs({s: sizes[s.name] for s in formula.free_symbols}))
        note = INFINIBAND if record["host"] == "A100 InfiniBand" else ""
        for name, column, blocks in (
            ("block", "min_block_thousands", 1),
            ("sequence", "min_seq_thousands", 6),
        ):
            label, published = f"{record['host']} {name}", float(record[column])
            yield Line(label, published, blocks * block, 1, note, arithmetic=True)


HALVES = (  # Ring Attention, table 1, as printed: attention, FFN, total
    ("vanilla", ("2 b n s^2", "8 b s h", "2 b h s^2")),
    ("memory-efficient", ("2 b s h + 4 b c h", "8 b s h", "8 b s h")),
    ("blockwise FFN", ("2 b s h", "2 b s h", "2 b s h")),
    ("ring", ("6 b c h", "2 b c h", "6 b c h")),
)


@table(
    "Ring Attention: activations of a layer",
    "in units of b s h bytes, for ring of b c h; 128k tokens on 8 ranks, width h 4096, n 32 heads."
    " The plan holds Q, the output, and K and V twice: current and arriving",
)
def activations() -> Iterator[Line]:
    """Yields the two halves of a layer and their printed total, and the blocks of a ring plan."""
    width, heads, seq, ranks = 4096, 32, 131072, 8
    block = seq // ranks
    sizes = {"b": 1, "h": width, "n": heads, "s": seq, "c": block}
    for scheme, printed in HALVES:
        halves = layer(scheme, 1, seq, width, heads, block)
        unit = (block if scheme == "ring" else seq) * width
        for part, formula, ours in zip(
            ("attention", "FFN", "total"), printed, (*halves, max(halves)), strict=True
        ):
            note = TOTAL if (scheme, part) == ("vanilla", "total") else ""
            published = _evaluate(formula, sizes) / unit
            label = f"{scheme}, {part}: {formula}"
            yield Line(label, published, ours / unit, 1, note, arithmetic=True)
    work = Workload(seq=seq, heads=heads, head_dim=width // heads)
    counted = float(blocks_held(plan("ring", work, ranks)))
    yield Line("ring, counted in the plan", 6.0, counted, 0, "blocks of b c h")


def _evaluate(formula: str, sizes: Mapping[str, int]) -> float:
    """Returns the value of a sum of products such as 2 b s h + 4 b c h."""
    total = 0
    for term in formula.split(" + "):
        number, *factors = term.split()
        powers = (factor.partition("^") for factor in factors)
        total += int(number) * prod(sizes[name] ** int(power or 1) for name, _, power in powers)
    return float(total)


@table(
    "Ring Attention: cost of a dataset at longer context",
    "flop relative to a context of s1 = 4k tokens: (6h + s2) / (6h + s1)",
)
def flops() -> Iterator[Line]:
    """Yields the training flop at longer contexts relative to 4k, for each width h (figure 5).

    A sequence takes 24 b s h^2 + 4 b s^2 h flop per layer (appendix B).
    """

    def relative_flop(width: int, seq: int) -> float:
        return (6 * width + seq) / (6 * width + 4096)

    ours = relative_flop(12288, 4096 * 3072)
    yield Line("12M tokens, width 12288", 162.6, ours, 1, arithmetic=True)
    for width in (4096, 5140, 7168, 8192):
        label, note = f"1M tokens, width {width}", "figure 5: 20 to 40"
        yield Line(label, None, relative_flop(width, 2**20), 1, note, arithmetic=True)


@table(
    "Ring Attention: longest context with ring (k tokens)",
    "limited by memory, with the assumptions of the baselines below, and the sequence sharded over"
    " all devices; each published length is the best baseline's times the number of devices"
    " (TPUv3-512: 256), which needs more memory than the devices have",
)
def ring_contexts() -> Iterator[Line]:
    """Yields the longest contexts of ring by the memory model."""
    for record in records(DATA / "ring_max_context.csv"):
        yield _context(record, "ring", float(record["ring_k"]))


def baseline_contexts() -> Table:
    """Returns the longest contexts of the baselines by the memory model."""
    lines = [
        _context(record, scheme, float(record[column]))
        for record in records(DATA / "ring_max_context.csv")
        for scheme, column in BASELINES.items()
    ]
    close = sum(map(within_two, lines))
    note = (
        f"{close} of {len(lines)} within a factor of 2; assumed: everything in 32 bit, weights and"
        " two Adam moments sharded over all devices, tensor parallelism over the 8 GPUs of a node"
        " or 2 chips of a pod"
    )
    return Table("Ring Attention: longest context of baselines (k tokens)", lines, note)


def within_two(line: Line) -> bool:
    """Returns True if our number is within a factor of two of the published one."""
    return line.error is not None and 0.5 <= 1 + line.error <= 2


def _context(record: Record, scheme: str, published: float) -> Line:
    model, cluster = MODELS[record["model"]], CLUSTERS[record["cluster"]]
    ours = longest_context(scheme, model, cluster) / 1024
    label = f"{record['cluster']} {record['model']}{f' {scheme}' * (scheme != 'ring')}"
    line = Line(label, published, ours, 0)
    if within_two(line):
        return line
    need = training_need(scheme, model, cluster, int(published * 1024))
    return replace(line, note=_explain(scheme, need, cluster, line))


def _explain(scheme: str, need: Need, cluster: Cluster, line: Line) -> str:
    """Returns the modelled memory at the published length, and a likely cause of the error."""
    parts = ", ".join(f"{size / GB:.1f} {name}" for name, size in need._asdict().items())
    total = f"this length needs {sum(need) / GB:.1f} of {cluster.memory / GB:.0f} GB ({parts})"
    if scheme == "ring":
        return total
    if (line.error or 0) < 0:
        return f"{total}: the run kept less, for example 16-bit or offloaded checkpoints"
    return f"{total}: something else used the rest, for example padded or copied scores"
