"""DistFlashAttn's iteration times: the training model with two constants from one-node rows.

attention  what attention kernels reach, in times of the preset's share of the peak
matrix     share of the peak that the other matrix products reach

Everything else is the preset's, the paper's (100 Gb/s per GPU between nodes) or assumed: partial
results travel in 16 bit, as inputs do; 92% of a port's rate is reached, as on faster ports.
"""

import tomllib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringloom.reproduce.fitting import least_squares
from ringloom.reproduce.models.training import Setting, iteration
from ringloom.reproduce.models.transformers import Model
from ringloom.reproduce.published import DATA, records
from simulator.hardware import Hardware, hardware

Floats = NDArray[np.float64]
PORT = 0.92 * 12.5e9  # bytes/s of a GPU between nodes
LLAMA = {
    "7b": Model("LLaMA-7B", 4096, 11008, 32, 32),
    "gqa": Model("LLaMA-GQA", 4096, 11008, 32, 32, kv_heads=8),
    "33h": Model("LLaMA-33H", 4224, 11008, 32, 33),
}
SYSTEMS = {"Megatron-LM": "megatron-v3", "DistFlashAttn": "balanced"}


class Run(NamedTuple):
    """One published iteration."""

    system: str
    ranks: int
    seq: int
    model: str
    seconds: float

    @property
    def name(self) -> str:
        """The run in words, short."""
        return f"{self.system} {self.ranks} GPUs {self.seq // 1024}k {self.model}"


def runs() -> list[Run]:
    """The 36 published iterations."""
    return [
        Run(
            record["system"],
            int(record["nodes"]) * int(record["gpus_per_node"]),
            int(record["seq_total_k"]) * 1024,
            model,
            float(record[f"llama_{model}_s"]),
        )
        for record in records("dist_iteration_times.csv")
        for model in LLAMA
    ]


def constants() -> tuple[float, float]:
    """(attention, matrix) as they come with ringloom."""
    content = tomllib.loads((DATA / "distflash_time.toml").read_text(encoding="utf-8"))
    return content["attention"]["value"], content["matrix"]["value"]


def cluster(attention: float) -> Hardware:
    """Two nodes of eight A100s, 100 Gb/s per GPU between them."""
    base = hardware("a100-nvlink")
    kernels = {f"attention.{p}": base[f"attention.{p}"] for p in ("forward", "backward")}
    faster = {key: min(1.0, value * attention) for key, value in kernels.items()}
    return base.changed({**faster, "inter.bandwidth": PORT}, "DistFlashAttn's cluster")


def setting(
    system: str, model: Model, ranks: int, seq: int, fitted: tuple[float, float] | None = None
) -> Setting:
    """Returns how the paper trains a model with a system; its own schedule, its own checkpoints."""
    attention, matrix = fitted or constants()
    on, ours = cluster(attention), system == "balanced"
    return Setting(model, on, ranks, seq, system, matrix, rematerialise=ours, partial_bytes=2)


def seconds(run: Run, fitted: tuple[float, float] | None = None) -> float:
    """Predicted seconds of a published iteration."""
    system, model = SYSTEMS[run.system], LLAMA[run.model]
    return iteration(setting(system, model, run.ranks, run.seq, fitted)).seconds


def one_node(among: Sequence[Run]) -> list[Run]:
    """The rows that the two constants may see."""
    return [run for run in among if run.ranks == 8]


def refit() -> Floats:
    """(attention, matrix) with the least squared relative error on the one-node rows."""
    seen = one_node(runs())
    measured = np.array([run.seconds for run in seen])

    def model(values: Floats, at: NDArray[np.intp]) -> Floats:
        fitted = float(values[0]), float(values[1])
        return np.array([seconds(seen[i], fitted) for i in at])

    return least_squares(model, measured, np.arange(len(seen)), np.array([1.0, 0.5]))
