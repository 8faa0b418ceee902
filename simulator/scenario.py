"""A scenario: all that may differ from the ordinary while a plan runs.

overlap   whether transfers run beside compute
speeds    per rank, 1.0 as the hardware says: 0.5 takes twice as long to attend and to merge
links     factors on the bandwidth of links, both ways; 0 cuts a link
topology  which links there are; by default what the hardware's constants say
buffers   receive buffers per input that travels, each as wide as its widest message; "plan" for
          what the plan itself states; without, a receive always finds room
late      a rank launches the transfers of a step behind its first kernel call of that step
share     the share of the chip that a transfer takes from compute at both ends
chunk     bytes in which messages take turns on links that several of them use
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from planner.errors import PlanError
from planner.ir import ADDS, Plan
from simulator.network.routes import Links
from simulator.network.topology import Topology

Speeds = Mapping[int, float] | Sequence[float]
CHUNK = 1 << 19  # bytes: what NCCL cuts point-to-point messages on NVLink into


@dataclass(frozen=True)
class Scenario:
    """All that is not the plan and not the hardware; raises PlanError for what makes no sense."""

    overlap: bool = True
    speeds: Speeds | None = None
    links: Links = field(default_factory=dict)
    topology: Topology | None = None
    buffers: int | Literal["plan"] | None = None
    late: bool = False
    share: float | None = None
    chunk: int = CHUNK

    def __post_init__(self) -> None:
        if isinstance(self.buffers, int) and self.buffers < 1:
            raise PlanError(f"a rank has 1 receive buffer or more, not {self.buffers}")
        if self.late and not self.overlap:
            raise PlanError("late launches need overlap: without it nothing computes meanwhile")
        if self.share is not None and not 0 <= self.share < 1:
            raise PlanError(f"a transfer takes a share of the chip below 1, not {self.share:g}")
        if self.chunk < 1:
            raise PlanError(f"a chunk has 1 byte or more, not {self.chunk}")

    @property
    def by_default(self) -> bool:
        """Whether messages go as the hardware's constants say, unless they are slowed."""
        return self.topology is None and not self.links

    @property
    def events_only(self) -> bool:
        """Whether only the event engine knows what is asked for here."""
        return self.buffers is not None or self.late or bool(self.share)

    def pace(self, ranks: int) -> NDArray[np.float64]:
        """The speed of each rank [ranks]."""
        pace, speeds = np.ones(ranks), self.speeds or {}
        if not isinstance(speeds, Mapping):
            if len(speeds) != ranks:
                raise PlanError(f"{len(speeds)} speeds for {ranks} ranks")
            speeds = dict(enumerate(speeds))
        for rank, speed in speeds.items():
            if not 0 <= rank < ranks:
                raise PlanError(f"no rank {rank} to slow down: ranks are 0..{ranks - 1}")
            if not math.isfinite(speed) or speed <= 0:
                raise PlanError(f"rank {rank}: a speed is more than 0, not {speed:g}")
            pace[rank] = speed
        return pace

    def room(self, plan: Plan) -> dict[str, int] | None:
        """Blocks away from home that a rank has room for, per input; None for no limit."""
        if self.buffers is None:
            return None
        if self.buffers == "plan":
            return {t: n for t, n in plan.buffers if t not in ADDS[plan.pass_]}
        widest = dict[str, int]()
        for _, move in plan.moves():
            for tensor in () if move.accumulates else move.tensors:
                widest[tensor] = max(widest.get(tensor, 1), move.blocks.shape[1])
        return {tensor: width * self.buffers for tensor, width in widest.items()}
