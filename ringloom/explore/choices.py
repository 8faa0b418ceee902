"""Choices of a reader, as in an address: ?schedule=zigzag&ranks=8&seq=256k&mask=causal ...

An address may come from anybody: every part is checked, and no part may name a file.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from planner.errors import RingloomError
from planner.parse import schedule as parse_schedule
from planner.parse import tokens
from planner.schedules import SCHEDULES
from planner.workload import Workload
from ringloom.comparison import Passes
from simulator.hardware import presets

MOST_RANKS = 128  # beyond these, pictures are slow and show little
LONGEST = 1 << 24  # tokens
PASSES: tuple[Passes, ...] = ("forward", "backward", "both")


@dataclass(frozen=True, slots=True)
class Choices:
    """Values of the controls; raises RingloomError for invalid ones."""

    schedule: str = "ring"
    ranks: int = 8
    seq: str = "256k"
    mask: str = "causal"
    heads: int = 32
    kv_heads: int = 32
    hardware: str = "a100-nvlink"
    pass_: Passes = "forward"
    overlap: bool = True

    def __post_init__(self) -> None:
        if "@" in self.mask or any(mark in self.hardware for mark in "./\\"):
            raise RingloomError("an address names no files: write the mask out, name a preset")
        if self.hardware not in presets():
            raise RingloomError(
                f"unknown hardware {self.hardware!r}: choose {', '.join(presets())}"
            )
        if parse_schedule(self.schedule)[0] not in SCHEDULES:
            raise RingloomError(
                f"unknown schedule {self.schedule!r}: choose {', '.join(SCHEDULES)}"
            )
        if not 1 <= self.ranks <= MOST_RANKS:
            raise RingloomError(f"ranks must be 1 to {MOST_RANKS}, not {self.ranks}")
        if not 1 <= tokens(self.seq) <= LONGEST:
            raise RingloomError(f"tokens must be 1 to {LONGEST}, not {self.seq}")
        if self.pass_ not in PASSES:
            raise RingloomError(f"pass must be {', '.join(PASSES)}, not {self.pass_!r}")

    @property
    def work(self) -> Workload:
        """The workload, its mask parsed."""
        return Workload(
            seq=tokens(self.seq),
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=128,
            mask=self.mask,
        )

    def query(self) -> dict[str, str]:
        """The parts of an address that bring these choices back; defaults are left out."""
        usual = asdict(Choices()) | {"kv_heads": self.heads}
        chosen = {name: value for name, value in asdict(self).items() if value != usual[name]}
        words = {True: "on", False: "off"}
        return {
            name.rstrip("_"): words[value] if isinstance(value, bool) else str(value)
            for name, value in chosen.items()
        }


def from_query(query: Mapping[str, str]) -> Choices:
    """Returns the choices of an address; raises RingloomError for invalid parts."""
    chosen: dict[str, Any] = {}
    for field in fields(Choices):
        if (text := query.get(field.name.rstrip("_"))) is None:
            continue
        if field.name == "overlap":
            chosen[field.name] = _switch(field.name, text)
        elif field.name in ("ranks", "heads", "kv_heads"):
            chosen[field.name] = _whole(field.name, text)
        else:
            chosen[field.name] = text[:200]
    chosen.setdefault("kv_heads", chosen.get("heads", Choices().heads))
    return replace(Choices(), **chosen)


def _whole(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 6:
        raise RingloomError(f"{name} must be a whole number, not {text[:40]!r}")
    return int(text)


def _switch(name: str, text: str) -> bool:
    if text not in ("on", "off"):
        raise RingloomError(f"{name} must be on or off, not {text[:40]!r}")
    return text == "on"
