"""advise(model, gpus, hardware, seq)   the splits that fit, by predicted seconds per step."""

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
from ringloom.planner.given import number, whole
from ringloom.planner.masks import Mask
from ringloom.planner.workload import LONGEST, Workload
from ringloom.rows import shortage
from ringloom.simulator.hardware import Hardware
from ringloom.simulator.hardware import hardware as find_hardware
from ringloom.views.units import length

MOST_CHIPS = 4096
REFINED = 3  # of the fastest splits, for which every setting that compare tries is tried, too
COLUMNS = {  # of a row's numbers: where each comes from
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
    """A model, its chips and sequences, and what memory assumes; `room` is bytes per chip."""

    model: Model
    gpus: int
    machine: Hardware
    work: Workload
    global_batch: int
    zero: Zero
    checkpoint: Checkpoint
    room: float
    matrix_share: float

    def __post_init__(self) -> None:
        if self.zero not in ZEROS:
            raise RingloomError(f"zero must be 0, 1 or 3, not {self.zero!r}")
        if self.checkpoint not in CHECKPOINTS:
            raise RingloomError(unknown("checkpoint", self.checkpoint, CHECKPOINTS))
        if not 0 < self.matrix_share <= 1:
            raise RingloomError(f"matrix_share is above 0, at most 1, not {self.matrix_share:g}")
        if self.global_batch % self.work.seq:
            fewer = self.global_batch // self.work.seq * self.work.seq
            near = [n for n in (fewer, fewer + self.work.seq) if n]
            raise RingloomError(
                f"a global batch of {self.global_batch} tokens is not whole sequences of"
                f" {self.work.seq}: use {' or '.join(map(str, near))}"
            )

    @property
    def sequences(self) -> int:
        """Sequences in a global batch."""
        return self.global_batch // self.work.seq

    @property
    def title(self) -> str:
        """The model, the chips and the batch in one line."""
        model, batch = self.model, length(self.global_batch)
        return (
            f"{model.family} of {model.parameters() / 1e9:.3g}B parameters on {self.gpus}"
            f" {self.machine.name}: steps of {batch} tokens in sequences of"
            f" {length(self.work.seq)}, {self.work.mask}, ZeRO {self.zero},"
            f" checkpointing {self.checkpoint}"
        )


@dataclass(frozen=True)
class Ranked:
    """A split that fits, its seconds per step by what they are spent on, and its bytes per chip."""

    tensor: int
    context: int
    data: int
    micro_batches: int
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
class Unfit:
    """A split that is not possible, and the reason."""

    tensor: int
    context: int
    data: int
    reason: str


@dataclass(frozen=True, repr=False)
class Advice:
    """Splits of chips into tensor, context and data parallelism, the fastest first."""

    request: Request
    rows: tuple[Ranked, ...]
    refused: tuple[Unfit, ...]

    def __repr__(self) -> str:
        best = self.rows[0]
        split = f"tensor {best.tensor}, context {best.context}, data {best.data}"
        return f"<Advice: {split}; {best.step_s:.3g} s per step, {len(self.rows)} splits fit>"

    @property
    def emit(self) -> str:
        """The command that emits the fastest split's attention; "" if nothing travels in it."""
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
        """Plain values for JSON."""
        asked = self.request
        return {
            "parameters": asked.model.parameters(),
            "gpus": asked.gpus,
            "hardware": asked.machine.name,
            "global_batch": asked.global_batch,
            "zero": asked.zero,
            "checkpoint": asked.checkpoint,
            "matrix_share": asked.matrix_share,
            "rows": [asdict(row) | {"schedules": list(row.schedules)} for row in self.rows],
            "refused": [asdict(one) for one in self.refused],
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
    """Rank the splits of chips into tensor, context and data parallelism that fit in memory.

    `model` is the config.json of a Hugging Face model, or what it contains; `seq` the tokens of a
    sequence, `global_batch` the tokens of a step, by default a sequence per chip; `memory` the
    bytes of a chip, by default all; `matrix_share` the share of the peak that matrix products
    outside attention reach. Attention is simulated with the fastest schedule of each split, forward
    and backward; other flops and bytes are counted and divided by the rates of chips and links.
    `track` may wrap the splits, to show progress. Raises RingloomError for models that cannot be
    counted and for batches that are not whole sequences, PlanError where no split fits.
    """
    machine, shape = find_hardware(hardware), read_model(model)
    chips = whole("gpus", gpus, 1, MOST_CHIPS)
    work = shape.attention(whole("seq", seq, 1, LONGEST), mask)
    room = machine["memory.capacity"] if memory is None else number("memory", memory, 1.0)
    tokens = chips * work.seq if global_batch is None else whole("global_batch", global_batch, 1)
    share = number("matrix_share", matrix_share)
    asked = Request(shape, chips, machine, work, tokens, zero, checkpoint, room, share)
    rows, refused = list[Ranked](), list[Unfit]()
    for split in track(list(splits(asked))):
        try:
            rows.append(_ranked(asked, split))
        except PlanError as error:
            refused.append(Unfit(split.tensor, split.context, split.data, str(error)))
    if not rows:
        reasons = "; ".join(
            f"{x.tensor} x {x.context} x {x.data}: {x.reason}" for x in refused[-2:]
        )
        raise PlanError(f"no split of {chips} {machine.name} is possible: {reasons or 'none'}")
    rows.sort(key=_order)
    best = [_ranked(asked, _split_of(row), every=True) for row in rows[:REFINED]]
    return Advice(asked, tuple(sorted([*best, *rows[REFINED:]], key=_order)), tuple(refused))


def splits(asked: Request) -> Iterator[Split]:
    """Yields every split: tensor parallelism in a node, sequences that data parallelism divides."""
    divisors = [n for n in range(1, asked.gpus + 1) if asked.gpus % n == 0]
    node = asked.machine.ranks_per_node
    for tensor in divisors:
        if tensor <= node and node % tensor == 0:
            groups = asked.gpus // tensor
            for context in (n for n in divisors if groups % n == 0):
                data = groups // context
                yield Split(tensor, context, data, max(1, asked.sequences // data))


def _order(row: Ranked) -> tuple[float, ...]:
    return row.step_s, row.memory_bytes, row.tensor, row.context


def _split_of(row: Ranked) -> Split:
    return Split(row.tensor, row.context, row.data, row.micro_batches)


def _ranked(asked: Request, split: Split, *, every: bool = False) -> Ranked:
    """Returns the row of a split; raises PlanError where it is not possible."""
    model, machine, seq = asked.model, asked.machine, asked.work.seq
    case = model, seq, split
    _check(asked, split)
    kept = memory.parameter_bytes(model, split, asked.zero)
    kept += memory.kept_bytes(*case, asked.checkpoint)
    layer, logits = memory.work_bytes(*case, asked.checkpoint), memory.logit_bytes(*case)
    if lack := shortage(kept + max(layer, logits), asked.room):
        raise PlanError(f"{lack}, without attention")
    chip = machine, asked.checkpoint, asked.room, kept + layer
    attention = attention_of(model, asked.work, split, *chip, every=every)
    return _row(asked, split, attention, kept + max(logits, layer + attention.peak_bytes))


def _check(asked: Request, split: Split) -> None:
    """Raises PlanError where sequences, heads or feed-forward layers do not divide."""
    if asked.sequences % split.data:
        raise PlanError(
            f"data parallelism of {split.data} does not divide the {asked.sequences} sequences of a"
            " step"
        )
    asked.work.split(split.tensor)
    if asked.model.ff % split.tensor:
        raise PlanError(
            f"tensor parallelism of {split.tensor} does not divide feed-forward layers of"
            f" {asked.model.ff}"
        )
    if split.context > asked.work.seq:
        raise PlanError(f"context parallelism of {split.context} needs as many tokens")


def _row(asked: Request, split: Split, attention: Attention, needed: int) -> Ranked:
    model, machine, seq = asked.model, asked.machine, asked.work.seq
    flop = costs.matrix_flop(model, seq, split, asked.checkpoint)
    within = costs.tensor_bytes(model, seq, split, asked.checkpoint)
    between = costs.gradient_bytes(model, split, asked.zero)
    parts = {
        "attention_s": split.micro_batches * attention.seconds,
        "matrix_s": flop / (machine.peak(asked.work.dtype) * asked.matrix_share),
        "tensor_comm_s": within / costs.tensor_rate(machine),
        "gradient_comm_s": between / costs.gradient_rate(machine, split),
    }
    step = sum(parts.values())
    return Ranked(
        tensor=split.tensor,
        context=split.context,
        data=split.data,
        micro_batches=split.micro_batches,
        schedules=attention.schedules,
        step_s=step,
        **parts,
        matrix_flop=flop,
        tensor_comm_bytes=within,
        gradient_comm_bytes=between,
        memory_bytes=needed,
        tokens_per_s=asked.global_batch / step,
    )
