"""advise(model, gpus, hardware, seq)   ranks the splits that fit by predicted seconds per step."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ringloom.advising import costs, memory
from ringloom.advising.attention import Attention, attention_of
from ringloom.advising.costs import CHECKPOINTS, MATRIX_SHARE, ZEROS, Checkpoint, Split, Zero
from ringloom.advising.model import Model, read_model
from ringloom.planner.errors import PlanError, RingloomError, unknown
from ringloom.planner.given import require_integer, require_number
from ringloom.planner.masks import Mask
from ringloom.planner.workload import LARGEST_SIZE, Workload
from ringloom.rows import shortage
from ringloom.simulator.hardware import Hardware
from ringloom.simulator.hardware import hardware as find_hardware
from ringloom.views.units import length

MAX_CHIPS = 4096
REFINED = 3  # number of fastest splits for which all settings of compare are tried
COLUMNS = {  # column: its origin
    "step_s": "predicted",
    "attention_s": "predicted",
    "matrix_s": "counted",
    "tensor_comm_s": "counted",
    "gradient_comm_s": "counted",
    "matrix_flop": "counted",
    "tensor_comm_bytes": "counted",
    "gradient_comm_bytes": "counted",
    "memory_bytes": "counted, with the predicted peak of attention",
    "tokens_per_s": "predicted",
}
NOT_MODELLED = (
    "pipeline and expert parallelism",
    "optimizer steps",
    "overlap of collectives with compute",
    "latencies of collectives",
    "norms and other element-wise kernels",
    "embeddings",
    "memory of libraries and fragmentation",
)


@dataclass(frozen=True)
class Request:
    """A model, its chips and batch, and the training settings; `memory_limit` in bytes per chip."""

    model: Model
    gpus: int
    machine: Hardware
    work: Workload
    global_batch: int
    zero: Zero
    checkpoint: Checkpoint
    memory_limit: float
    matrix_share: float

    def __post_init__(self) -> None:
        if self.zero not in ZEROS:
            raise RingloomError(f"zero must be 0, 1 or 3, not {self.zero!r}")
        if self.checkpoint not in CHECKPOINTS:
            raise RingloomError(unknown("checkpoint", self.checkpoint, CHECKPOINTS))
        if not 0 < self.matrix_share <= 1:
            raise RingloomError(
                f"matrix_share must be above 0 and at most 1, not {self.matrix_share:g}"
            )
        if self.global_batch % self.work.seq:
            lower = self.global_batch // self.work.seq * self.work.seq
            nearest = [n for n in (lower, lower + self.work.seq) if n]
            raise RingloomError(
                f"a global batch of {self.global_batch} tokens is not a multiple of the sequence"
                f" length {self.work.seq}: use {' or '.join(map(str, nearest))}"
            )

    @property
    def sequences(self) -> int:
        """Returns the number of sequences in a global batch."""
        return self.global_batch // self.work.seq

    @property
    def title(self) -> str:
        """Returns the model, the chips and the batch in one line."""
        model, batch = self.model, length(self.global_batch)
        return (
            f"{model.family} of {model.parameters() / 1e9:.3g}B parameters on {self.gpus}"
            f" {self.machine.name}: steps of {batch} tokens in sequences of"
            f" {length(self.work.seq)}, {self.work.mask}, ZeRO {self.zero},"
            f" checkpointing {self.checkpoint}"
        )


@dataclass(frozen=True)
class RankedSplit(Split):
    """A split that fits, with the parts of its seconds per step and its bytes per chip."""

    schedules: tuple[str, ...]
    step_s: float
    attention_s: float
    matrix_s: float
    tensor_comm_s: float
    gradient_comm_s: float
    matrix_flop: int
    tensor_comm_bytes: float
    gradient_comm_bytes: float
    memory_bytes: int
    tokens_per_s: float


@dataclass(frozen=True)
class RefusedSplit:
    """A split that is not possible, with the reason."""

    tensor: int
    context: int
    data: int
    reason: str


@dataclass(frozen=True, repr=False)
class Advice:
    """Splits of chips into tensor, context and data parallelism, the fastest first."""

    request: Request
    rows: tuple[RankedSplit, ...]
    refused: tuple[RefusedSplit, ...]

    def __repr__(self) -> str:
        best = self.rows[0]
        split = f"tensor {best.tensor}, context {best.context}, data {best.data}"
        return f"<Advice: {split}; {best.step_s:.3g} s per step, {len(self.rows)} splits fit>"

    @property
    def emit(self) -> str:
        """Returns the command that emits the fastest split's attention; "" without transfers."""
        best, work = self.rows[0], self.request.work
        if not best.schedules:
            return ""
        sizes = {"heads": work.heads, "kv-heads": work.kv_heads, "head-dim": work.head_dim}
        options = {"ranks": best.context, "seq": length(work.seq), **sizes}
        options |= {"mask": work.mask} if str(work.mask) != "causal" else {}
        options |= {"tensor-parallel": best.tensor} if best.tensor > 1 else {}
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        return shlex.join(
            ["ringloom", "emit", "torch", best.schedules[0], *words, "-o", "attention.py"]
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON."""
        request = self.request
        return {
            "parameters": request.model.parameters(),
            "gpus": request.gpus,
            "hardware": request.machine.name,
            "global_batch": request.global_batch,
            "zero": request.zero,
            "checkpoint": request.checkpoint,
            "matrix_share": request.matrix_share,
            "rows": [asdict(row) | {"schedules": list(row.schedules)} for row in self.rows],
            "refused": [asdict(split) for split in self.refused],
            "columns": COLUMNS,
            "not_modelled": list(NOT_MODELLED),
            "emit": self.emit or None,
        }


def advise(
    model: str | Path | Mapping[str, Any],
    gpus: int,
    hardware: Hardware | str | Path,
    seq: int,
    *,
    mask: Mask | str = "causal",
    global_batch: int | None = None,
    zero: Zero = 1,
    checkpoint: Checkpoint = "full",
    memory: float | None = None,
    matrix_share: float = MATRIX_SHARE,
    track: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> Advice:
    """Ranks the splits of chips into tensor, context and data parallelism that fit in memory.

    Attention is simulated with the fastest schedule of each split, forward and backward. Other
    flops and bytes are counted and divided by the rates of chips and links.

    `model`: the config.json of a Hugging Face model, or its content. `seq`: tokens per sequence.
    `global_batch`: tokens per step, by default one sequence per chip. `memory`: bytes per chip, by
    default all of the chip's memory. `matrix_share`: fraction of the peak rate that matrix products
    outside attention reach. `track` may wrap the splits to show progress. Raises RingloomError for
    models that are not supported and for batches that are not a multiple of the sequence length,
    PlanError if no split fits.
    """
    machine, shape = find_hardware(hardware), read_model(model)
    chips = require_integer("gpus", gpus, 1, MAX_CHIPS)
    work = shape.attention(require_integer("seq", seq, 1, LARGEST_SIZE), mask)
    limit = machine["memory.capacity"] if memory is None else require_number("memory", memory, 1.0)
    tokens = (
        chips * work.seq
        if global_batch is None
        else require_integer("global_batch", global_batch, 1)
    )
    share = require_number("matrix_share", matrix_share)
    request = Request(shape, chips, machine, work, tokens, zero, checkpoint, limit, share)
    rows, refused = list[RankedSplit](), list[RefusedSplit]()
    for split in track(list(splits(request))):
        try:
            rows.append(_ranked(request, split))
        except PlanError as error:
            refused.append(RefusedSplit(split.tensor, split.context, split.data, str(error)))
    if not rows:
        reasons = "; ".join(
            f"{x.tensor} x {x.context} x {x.data}: {x.reason}" for x in refused[-2:]
        )
        raise PlanError(f"no split of {chips} {machine.name} is possible: {reasons}")
    rows.sort(key=_order)
    best = [_ranked(request, row, variants=True) for row in rows[:REFINED]]
    return Advice(request, tuple(sorted([*best, *rows[REFINED:]], key=_order)), tuple(refused))


def splits(request: Request) -> Iterator[Split]:
    """Yields every split whose tensor-parallel groups lie within a node."""
    divisors = [n for n in range(1, request.gpus + 1) if request.gpus % n == 0]
    node = request.machine.ranks_per_node
    for tensor in divisors:
        if tensor <= node and node % tensor == 0:
            groups = request.gpus // tensor
            for context in (n for n in divisors if groups % n == 0):
                data = groups // context
                yield Split(tensor, context, data, max(1, request.sequences // data))


def _order(row: RankedSplit) -> tuple[float, ...]:
    return row.step_s, row.memory_bytes, row.tensor, row.context


def _ranked(request: Request, split: Split, *, variants: bool = False) -> RankedSplit:
    """Returns the row of a split; raises PlanError if the split is not possible.

    `variants`: also tries the further settings of compare.
    """
    model, machine, seq = request.model, request.machine, request.work.seq
    case, limit = (model, seq, split), request.memory_limit
    _check(request, split)
    kept = memory.parameter_bytes(model, split, request.zero)
    kept += memory.kept_bytes(*case, request.checkpoint)
    layer, logits = memory.work_bytes(*case, request.checkpoint), memory.logit_bytes(*case)
    if lack := shortage(kept + max(layer, logits), limit):
        raise PlanError(f"{lack}, even without attention")
    chip = machine, request.checkpoint, limit, kept + layer
    attention = attention_of(model, request.work, split, *chip, variants=variants)
    return _row(request, split, attention, kept + max(logits, layer + attention.peak_bytes))


def _check(request: Request, split: Split) -> None:
    """Raises PlanError if sequences, heads or feed-forward layers cannot be divided evenly."""
    if request.sequences % split.data:
        raise PlanError(
            f"data parallelism of {split.data} does not divide the {request.sequences} sequences of"
            " a step"
        )
    request.work.split(split.tensor)
    if request.model.ff % split.tensor:
        raise PlanError(
            f"tensor parallelism of {split.tensor} does not divide feed-forward layers of"
            f" {request.model.ff}"
        )
    if split.context > request.work.seq:
        raise PlanError(
            f"context parallelism of {split.context} needs at least {split.context} tokens per"
            " sequence"
        )


def _row(request: Request, split: Split, attention: Attention, needed: int) -> RankedSplit:
    model, machine, seq = request.model, request.machine, request.work.seq
    flop = costs.matrix_flop(model, seq, split, request.checkpoint)
    tensor_bytes = costs.tensor_bytes(model, seq, split, request.checkpoint)
    gradient_bytes = costs.gradient_bytes(model, split, request.zero)
    parts = {
        "attention_s": split.micro_batches * attention.seconds,
        "matrix_s": flop / (machine.peak(request.work.dtype) * request.matrix_share),
        "tensor_comm_s": tensor_bytes / machine.links[0].bandwidth,
        "gradient_comm_s": gradient_bytes / costs.gradient_rate(machine, split),
    }
    step = sum(parts.values())
    return RankedSplit(
        tensor=split.tensor,
        context=split.context,
        data=split.data,
        micro_batches=split.micro_batches,
        schedules=attention.schedules,
        step_s=step,
        **parts,
        matrix_flop=flop,
        tensor_comm_bytes=tensor_bytes,
        gradient_comm_bytes=gradient_bytes,
        memory_bytes=needed,
        tokens_per_s=request.global_batch / step,
    )
