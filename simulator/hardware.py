"""hardware ::= name, section*             a100-nvlink, or a TOML or JSON file of the same form
section  ::= [section] constant*
constant ::= key = { value = 312e12, source = "datasheet", calibrated = true }

No constant without a source. `calibrated` is true where the value was measured on this very
hardware or is its vendor's figure, false where it was carried over from a relative or assumed.
"""

import json
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from planner.errors import PlanError
from planner.ir import Pass

PRESETS = Path(__file__).parent / "presets"
LARGEST_FILE = 2**20  # bytes


@dataclass(frozen=True, slots=True)
class Unit:
    """What a constant is measured in, and which values make sense."""

    name: str
    least: float = 0.0
    most: float = math.inf
    whole: bool = False
    zero: bool = False  # whether 0 is a value that makes sense

    def refuses(self, value: float) -> str:
        """Why a value makes no sense, or nothing."""
        if not math.isfinite(value):
            return "is not finite"
        if value < self.least or (value == 0 and not self.zero):
            return "is negative" if value < 0 else "is too small"
        if value > self.most:
            return f"is more than {self.most:g}"
        return "is not a whole number" if self.whole and value != int(value) else ""


FLOPS = Unit("flop/s")
SHARE = Unit("share of the peak", most=1.0)
SECONDS = Unit("s", zero=True)
RATE = Unit("bytes/s, one way per rank")
TOKENS = Unit("tokens", least=1, whole=True)
UNITS: dict[str, Unit] = {
    **{f"peak.{kind}": FLOPS for kind in ("bfloat16", "float16", "tf32", "float32", "float64")},
    "attention.forward": SHARE,
    "attention.backward": SHARE,
    "attention.launch": SECONDS,
    "attention.tile_q": TOKENS,
    "attention.tile_kv": TOKENS,
    "memory.bandwidth": Unit("bytes/s"),
    "memory.capacity": Unit("bytes"),
    "node.ranks": Unit("ranks", least=1, whole=True),
    "intra.alpha": SECONDS,
    "intra.bandwidth": RATE,
    "inter.alpha": SECONDS,
    "inter.bandwidth": RATE,
}


@dataclass(frozen=True, slots=True)
class Constant:
    """A number, where it comes from, and whether it belongs to this very hardware."""

    value: float
    source: str
    calibrated: bool


@dataclass(frozen=True, slots=True)
class Link:
    """What one transfer costs: alpha [s] + bytes / bandwidth [bytes/s, one way per rank]."""

    alpha: float
    bandwidth: float


@dataclass(frozen=True)
class Hardware:
    """Chips, their memory and their links, ranks filling nodes in order; `constants` by name.

    The names are those of `UNITS`. Raises PlanError for missing, unknown or impossible constants.
    """

    name: str
    constants: Mapping[str, Constant]

    def __post_init__(self) -> None:
        object.__setattr__(self, "constants", MappingProxyType(dict(self.constants)))
        for key in self.constants:
            if key not in UNITS:
                raise PlanError(f"hardware {self.name}: unknown constant {key}")
        if missing := [key for key in UNITS if key not in self.constants]:
            raise PlanError(f"hardware {self.name}: missing {', '.join(missing)}")
        for key, constant in self.constants.items():
            if why := UNITS[key].refuses(constant.value):
                raise PlanError(f"hardware {self.name}: {key} = {constant.value:g} {why}")

    def __hash__(self) -> int:
        return hash((self.name, tuple(self.constants.items())))

    def __getitem__(self, key: str) -> float:
        return self.constants[key].value

    def peak(self, dtype: str) -> float:
        """Matrix flop/s of one rank for inputs of a dtype."""
        return self[f"peak.{dtype}"]

    def efficiency(self, pass_: Pass) -> float:
        """The share of the peak that attention kernels reach on long blocks."""
        return self[f"attention.{pass_}"]

    @property
    def tile(self) -> tuple[int, int]:
        """Queries and keys of one kernel tile."""
        return int(self["attention.tile_q"]), int(self["attention.tile_kv"])

    @property
    def ranks_per_node(self) -> int:
        """Ranks that share the fast links; rank r is on node r // ranks_per_node."""
        return int(self["node.ranks"])

    @property
    def links(self) -> tuple[Link, Link]:
        """The link inside a node and the link between nodes."""
        intra, inter = (
            Link(self[f"{s}.alpha"], self[f"{s}.bandwidth"]) for s in ("intra", "inter")
        )
        return intra, inter

    def changed(self, values: Mapping[str, float], source: str = "given") -> "Hardware":
        """The same hardware with other values of some constants, which count as uncalibrated."""
        new = {key: Constant(float(value), source, False) for key, value in values.items()}
        return Hardware(self.name, {**self.constants, **new})


def presets() -> tuple[str, ...]:
    """The names of the hardware that comes with ringloom."""
    return tuple(sorted(path.stem for path in PRESETS.glob("*.toml")))


def hardware(name: str | Path) -> Hardware:
    """A preset by its name, or the hardware that a TOML or JSON file describes.

    Raises PlanError, in one line, for an unknown name and for a file that is missing, unreadable
    or does not give every constant with value, source and calibrated.
    """
    if str(name) in presets():
        return _read(PRESETS / f"{name}.toml")
    path = Path(name)
    if not path.is_file():
        known = ", ".join(presets())
        raise PlanError(f"unknown hardware {str(name)[:200]!r}: neither a file nor one of {known}")
    return load(path)


@lru_cache(maxsize=32)
def _read(path: Path) -> Hardware:
    return load(path)


def load(path: Path) -> Hardware:
    """Read and check one hardware file; a name ending in .json is JSON, all else TOML."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise ValueError(f"the file is larger than {LARGEST_FILE} bytes")
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        why = " ".join(str(error).split())[:200]
        raise PlanError(f"hardware file {path}: cannot be read: {why}") from None
    try:
        return Hardware(*_named(content, path.stem))
    except PlanError as error:
        raise PlanError(f"{error}; the presets {', '.join(presets())} show the form") from None


def _named(content: Any, stem: str) -> tuple[str, dict[str, Constant]]:
    if not isinstance(content, dict):
        raise PlanError(f"hardware {stem}: sections are wanted, not {_brief(content)}")
    name = content.get("name", stem)
    if not isinstance(name, str):
        raise PlanError(f"hardware {stem}: the name is {_brief(name)}, not a text")
    sections = {key: value for key, value in content.items() if key != "name"}
    return name, dict(_constants(name, sections))


def _constants(name: str, sections: dict[str, Any]) -> Iterator[tuple[str, Constant]]:
    for section, table in sections.items():
        if not isinstance(table, dict):
            raise PlanError(f"hardware {name}: unknown key {section} = {_brief(table)}")
        for key, entry in table.items():
            yield f"{section}.{key}", _constant(f"hardware {name}: {section}.{key}", entry)


def _constant(where: str, entry: Any) -> Constant:
    """One inline table; exactly value, source and calibrated, each of its own type."""
    if not isinstance(entry, dict) or entry.keys() != {"value", "source", "calibrated"}:
        form = "{ value = ..., source = ..., calibrated = ... }"
        raise PlanError(f"{where} must be {form}, not {_brief(entry)}")
    value, source, calibrated = entry["value"], entry["source"], entry["calibrated"]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PlanError(f"{where}: the value is {_brief(value)}, not a number")
    if not isinstance(source, str) or not source.strip():
        raise PlanError(f"{where}: the source is {_brief(source)}, not a text")
    if not isinstance(calibrated, bool):
        raise PlanError(f"{where}: calibrated is {_brief(calibrated)}, not true or false")
    return Constant(_finite(where, value), source, calibrated)


def _finite(where: str, value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        raise PlanError(f"{where}: the value is too large") from None


def _brief(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
