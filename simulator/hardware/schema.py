"""hardware ::= name, kernel?, section*    a100-nvlink, or a TOML or JSON file of the same form
section  ::= [section] constant*        [kernels.fa3]: the [attention] constants of one kernel
constant ::= key = { value = 312e12, source = "datasheet", calibrated = true, range = [low, high] }

Every constant has a source. `calibrated` is true if the value was measured on this very hardware or
is its vendor's figure, and false if it was assumed or taken from similar hardware. `range` has the
physically possible limits; the default range is 5% around a calibrated constant, and a factor of
1.5 around any other.
A chip may have several kernels (`h100:fa3`); `kernel = "cudnn"` names the default one.
`kind = "mesh"` in [node] says how the chips of a node are joined: by a `switch`, as a `torus`, by a
link between every two chips (`mesh`), or by a tree of `pcie` links with one link between every two
host bridges.
A file may omit the `OPTIONAL` constants, whose defaults have no effect: those of cost terms
(`ringloom.simulator.costs.terms`) and the following ones.

attention.traffic             the part of its memory traffic (inputs and results, once each) that a
                              kernel does not hide behind matrix products: 0 to 1
attention.head_half           head_dim at which scores cost as much as products with them; `forward`
                              and `backward` are shares of the peak at head_dim 128
attention.blocks              kernel blocks that the chip runs concurrently, such as one per SM
attention.host                seconds in which the host prepares a call, the least time of a call
attention.launch              seconds of each call in addition to its work
attention.narrow_tile_q       queries of a kernel tile for head_dim up to 64, if different
attention.short_tile_q        queries of a kernel tile for calls with fewer queries, if different
attention.skip_q, skip_kv     kernel tiles that causal calls skip, if different from `tile`
attention.causal              seconds per pair of a causal call, relative to a full one
attention.bottom_right        1 if 16-bit causal calls of programs are aligned at the last row and
                              column, so that late queries are one call; 0 if at the first
attention.mask                seconds per pair to make an explicit mask, once for all heads; 0 if
                              kernels support windows
attention.backward_launch ... constants of the backward pass that differ
node.axes                     axes of the torus that joins the chips of a node, as in TPU pods
node.wrap                     an axis closes to a ring if its length is a multiple of this number
node.bridges                  host bridges of a node, which share its ranks
node.bridge_bandwidth         bytes/s one way between two host bridges, for all their ranks together
inter.incast                  factor on the time of messages between nodes in an all-to-all, where
                              many ranks send to one
intra.sm_share ...            share of the chip that a transfer takes from compute at both ends
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, get_args

from ringloom.planner.errors import RingloomError, brief, unknown
from ringloom.planner.given import require_number
from ringloom.planner.ir import Pass

SMALLEST, LARGEST = 1e-30, 1e30  # in any unit; products of other values may overflow
MOST = 2**31  # tokens, ranks, blocks
Node = Literal["switch", "torus", "mesh", "pcie"]
NEEDED: dict[Node, tuple[str, ...]] = {
    "torus": ("node.axes",),
    "pcie": ("node.bridges", "node.bridge_bandwidth"),
}


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of a constant, and its valid values."""

    name: str
    least: float = 0.0
    most: float = math.inf
    whole: bool = False
    zero: bool = False  # True if 0 is also valid

    def refuses(self, value: float) -> str:
        """Returns why a value is invalid; "" if it is valid."""
        if value < (self.least if self.zero and not value else max(self.least, SMALLEST)):
            return "is negative" if value < 0 else "is too small"
        if value > (most := min(self.most, MOST if self.whole else LARGEST)):
            return f"is more than {most:g}"
        return "is not a whole number" if self.whole and value != int(value) else ""

    def clip(self, value: float) -> float:
        """Returns the nearest valid value."""
        return min(max(value, self.least), self.most)


FLOPS = Unit("flop/s")
SHARE = Unit("share of peak", most=1.0)
SECONDS = Unit("s", zero=True)
RATE = Unit("bytes/s, one way")
TOKENS = Unit("tokens", least=1, whole=True)
UNITS: dict[str, Unit] = {
    **{f"peak.{kind}": FLOPS for kind in ("bfloat16", "float16", "tf32", "float32", "float64")},
    "attention.forward": SHARE,
    "attention.backward": SHARE,
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
RATIO = Unit("ratio", least=1.0)
PART = Unit("share of chip", most=0.95, zero=True)
TIMES = Unit("times the traffic", zero=True)
# Optional constants with their defaults; 0 tokens stand for the size of the tile. The backward pass
# may have its own values; their defaults are the values of the forward pass.
PER_PASS: dict[str, tuple[Unit, float]] = {
    "traffic": (TIMES, 0.0),
    "host": (SECONDS, 0.0),
    "launch": (SECONDS, 0.0),
    "head_half": (Unit("head_dim", zero=True), 0.0),
    "skip_q": (TOKENS, 0.0),
    "skip_kv": (TOKENS, 0.0),
    "causal": (RATIO, 1.0),
    "mask": (Unit("s per pair", zero=True), 0.0),
}
OPTIONAL = {
    **{f"attention.{name}": kind for name, kind in PER_PASS.items()},
    **{f"attention.backward_{name}": kind for name, kind in PER_PASS.items()},
    "attention.bottom_right": (Unit("1 or 0", most=1, whole=True, zero=True), 0.0),
    "attention.blocks": (Unit("blocks", whole=True, zero=True), 0.0),
    "attention.narrow_tile_q": (TOKENS, 0.0),
    "attention.short_tile_q": (TOKENS, 0.0),
    "node.axes": (Unit("axes", most=6, whole=True, zero=True), 0.0),
    "node.wrap": (Unit("ranks", least=1, whole=True), 1.0),
    "node.bridges": (Unit("host bridges", whole=True, zero=True), 0.0),
    "node.bridge_bandwidth": (RATE, 0.0),
    "inter.incast": (RATIO, 1.0),
    "intra.sm_share": (PART, 0.0),
    "inter.sm_share": (PART, 0.0),
}
NARROW = 64  # head_dim up to which attention.narrow_tile_q applies
REFERENCE_DIM = 128  # the head_dim for which shares of the peak are stated


@dataclass(frozen=True, slots=True)
class Constant:
    """A number, its source, whether it was calibrated on this hardware, and its range."""

    value: float
    source: str
    calibrated: bool
    range: tuple[float, float] | None = field(default=None, repr=False)


def unit_of(key: str) -> Unit:
    """Returns the unit of a constant."""
    return UNITS[key] if key in UNITS else OPTIONAL[key][0]


@dataclass(frozen=True, slots=True)
class Link:
    """The cost of a transfer: alpha [s] + bytes / bandwidth [bytes/s, one way per rank].

    A transfer takes a `share` of the chip from compute at both ends.
    """

    alpha: float
    bandwidth: float
    share: float = 0.0


@dataclass(frozen=True)
class Hardware:
    """Chips, their memory and their links, as `constants` by name; ranks fill nodes in order.

    The names are all of `UNITS` and some of `OPTIONAL`. `node` is the kind of connection between
    the chips of a node. If the chip has several `kernels`, the constants are those of `kernel`.
    Raises RingloomError for missing, unknown or invalid constants.
    """

    name: str
    constants: Mapping[str, Constant]
    node: Node = "switch"
    kernel: str = field(default="", compare=False)
    kernels: tuple[str, ...] = field(default=(), compare=False)

    def __repr__(self) -> str:
        calibrated = sum(constant.calibrated for constant in self.constants.values())
        return f"<Hardware {self.name}: {len(self.constants)} constants, {calibrated} calibrated>"

    def __post_init__(self) -> None:
        object.__setattr__(self, "constants", MappingProxyType(dict(self.constants)))
        for key in self.constants:
            if key not in UNITS and key not in OPTIONAL:
                raise RingloomError(f"hardware {self.name}: unknown constant {key}")
        if self.node not in get_args(Node):
            kind = unknown("kind of node", self.node, get_args(Node))
            raise RingloomError(f"hardware {self.name}: {kind}")
        needed = *UNITS, *NEEDED.get(self.node, ())
        if missing := [key for key in needed if key not in self.constants]:
            raise RingloomError(f"hardware {self.name}: missing {', '.join(missing)}")
        for key, constant in self.constants.items():
            unit, (low, high) = unit_of(key), constant.range or (constant.value, constant.value)
            for value in (constant.value, low, high):
                if reason := unit.refuses(require_number(f"hardware {self.name}: {key} =", value)):
                    raise RingloomError(f"hardware {self.name}: {key} = {value:g} {reason}")
            if not low <= constant.value <= high:
                outside = f"{constant.value:g} is not between {low:g} and {high:g}"
                raise RingloomError(f"hardware {self.name}: {key} = {outside}")

    def __hash__(self) -> int:
        return hash((self.name, tuple(self.constants.items())))

    def __getitem__(self, key: str) -> float:
        return self.constants[key].value

    def range(self, key: str) -> tuple[float, float]:
        """Returns the range of a constant."""
        constant, unit = self.constants[key], unit_of(key)
        if constant.range:
            return constant.range
        factor = 1.05 if constant.calibrated else 1.5
        return unit.clip(constant.value / factor), unit.clip(constant.value * factor)

    def option(self, key: str, pass_: Pass = "forward") -> float:
        """Returns the constant for this pass, else the one for both passes, else the default."""
        of_pass = key.replace("attention.", f"attention.{pass_}_")
        values = [self[name] for name in (of_pass, key) if name in self.constants]
        return values[0] if values else OPTIONAL[key][1]

    def peak(self, dtype: str) -> float:
        """Returns the matrix flop/s of one rank for inputs of a dtype."""
        return self[f"peak.{dtype}"]

    def efficiency(self, pass_: Pass, head_dim: float = REFERENCE_DIM) -> float:
        """Returns the share of the peak that attention kernels reach on long blocks."""
        half = self.option("attention.head_half", pass_)
        relative = (1 + half / REFERENCE_DIM) / (1 + half / head_dim)
        return min(1.0, self[f"attention.{pass_}"] * relative)

    @property
    def tile(self) -> tuple[int, int]:
        """The queries and keys of one kernel tile."""
        return int(self["attention.tile_q"]), int(self["attention.tile_kv"])

    def tile_for(self, head_dim: int) -> tuple[int, int]:
        """Returns the kernel tile for heads of `head_dim` elements."""
        rows = int(self.option("attention.narrow_tile_q")) if head_dim <= NARROW else 0
        return rows or self.tile[0], self.tile[1]

    def skips(self, tile: tuple[int, int], pass_: Pass = "forward") -> tuple[int, int]:
        """Returns the queries and keys of the tiles that causal calls skip."""
        rows, columns = (
            int(self.option(f"attention.skip_{side}", pass_)) or size
            for side, size in zip(("q", "kv"), tile, strict=True)
        )
        return rows, columns

    @property
    def ranks_per_node(self) -> int:
        """The ranks that share fast links; rank r is on node r // ranks_per_node."""
        return int(self["node.ranks"])

    @property
    def links(self) -> tuple[Link, Link]:
        """The link inside a node, and the link between nodes."""
        intra, inter = (
            Link(self[f"{s}.alpha"], self[f"{s}.bandwidth"], self.option(f"{s}.sm_share"))
            for s in ("intra", "inter")
        )
        return intra, inter

    def changed(self, values: Mapping[str, float], source: str = "given") -> "Hardware":
        """Returns the hardware with new values of constants, which count as uncalibrated."""
        try:
            new = {
                k: Constant(require_number(k, value), source, False) for k, value in values.items()
            }
        except (AttributeError, TypeError, ValueError):
            form = f"changes must be numbers by constant, not {brief(values)}"
            raise RingloomError(f"hardware {self.name}: {form}") from None
        return replace(self, constants={**self.constants, **new})


def chip_of(name: str) -> str:
    """Returns the chip in a name such as h100:fa3."""
    return name.partition(":")[0]
