"""workload ::= Workload(seq, kv_seq, heads, kv_heads, head_dim, batch, dtype, mask,
                      scale=None, v_head_dim=None, sinks=False)

The attention to compute, independent of devices: softmax(Q K^T * scale) V under a mask.

With sinks, the softmax of every query head has one more logit, without a value: given (o, lse) over
the keys, the result is o * sigmoid(lse - sink), and lse becomes logaddexp(lse, sink).
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from inspect import signature

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.errors import PlanError, brief, unknown
from ringloom.planner.masks import Causal, Mask, parse
from ringloom.planner.masks.mask import check_mask
from ringloom.planner.one_line import OneLine, python

Positions = Sequence[int] | NDArray[np.integer]
DTYPES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}  # name -> bytes of an input
MOST_WIDTHS = 256  # tensor-parallel widths up to which errors list those that work
LONGEST = 2**31 - 1  # tokens; tile areas are exact in 64-bit integers up to here


@dataclass(frozen=True, init=False, repr=False)
class Workload(OneLine):
    """One attention: sizes in tokens and heads, dimensions in elements, the mask, the dtype.

    `head_dim` is the dimension of queries and keys, `v_head_dim` of values and results, the same by
    default. `kv_seq` defaults to `seq`, `kv_heads` to `heads`, `scale` to 1/sqrt(head_dim). A mask
    may be written as on the command line: "causal & window:4096". `sinks` adds a learned
    attention-sink logit per query head. `dataclasses.replace` keeps all other sizes, including
    those that were defaults. Raises PlanError for invalid values.
    """

    seq: int
    kv_seq: int
    heads: int
    kv_heads: int
    head_dim: int
    batch: int
    dtype: str
    mask: Mask
    scale: float | None
    v_head_dim: int
    sinks: bool

    def __init__(
        self,
        seq: int,
        kv_seq: int | None = None,
        heads: int = 32,
        kv_heads: int | None = None,
        head_dim: int = 128,
        batch: int = 1,
        dtype: str = "bfloat16",
        mask: Mask | str = Causal(),  # noqa: B008  frozen, so one shared instance is safe
        scale: float | None = None,
        v_head_dim: int | None = None,
        sinks: bool = False,
    ) -> None:
        sizes = {
            "seq": seq,
            "kv_seq": seq if kv_seq is None else kv_seq,
            "heads": heads,
            "kv_heads": heads if kv_heads is None else kv_heads,
            "head_dim": head_dim,
            "batch": batch,
            "v_head_dim": head_dim if v_head_dim is None else v_head_dim,
        }
        for field, value in sizes.items():
            if not isinstance(value, int | np.integer) or isinstance(value, bool):
                raise PlanError(f"{field} must be a whole number, not {brief(value)}")
            if not 1 <= value <= LONGEST:
                raise PlanError(f"{field} must be between 1 and {LONGEST}, not {value}")
            object.__setattr__(self, field, int(value))
        if self.heads % self.kv_heads:
            raise PlanError(
                f"{self.heads} query heads cannot share {self.kv_heads} KV heads evenly:"
                " heads must be a multiple of kv_heads"
            )
        if dtype not in DTYPES:
            raise PlanError(unknown("dtype", dtype, DTYPES))
        read = parse(mask) if isinstance(mask, str) else check_mask(mask)
        if scale is not None:
            number = isinstance(scale, int | float) and not isinstance(scale, bool)
            if not number or not abs(scale) <= sys.float_info.max:  # nor NaN
                raise PlanError(f"scale must be a finite number, not {brief(scale)}")
        if not isinstance(sinks, bool):
            raise PlanError(
                f"sinks must be True or False, not {brief(sinks)}: pass the logits to run"
            )
        mask = read.up_to(self.kv_seq)
        others = {"dtype": dtype, "mask": mask, "scale": scale, "sinks": sinks}
        for field, given in others.items():
            object.__setattr__(self, field, given)
        self.mask.check(self.seq, self.kv_seq)

    @property
    def python(self) -> str:
        """The Python that builds the workload, without defaults."""
        usual = {name: given.default for name, given in signature(Workload).parameters.items()}
        usual |= {"kv_seq": self.seq, "kv_heads": self.heads, "v_head_dim": self.head_dim}
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        said = (f"{name}={python(value)}" for name, value in values.items() if value != usual[name])
        return f"Workload({', '.join(said)})"

    def split(self, width: int) -> "Workload":
        """Returns the attention of one of `width` tensor-parallel ranks, which share the heads.

        Where there are fewer KV heads than ranks, several ranks have the same KV head. Raises
        PlanError, with the widths that work, where heads do not divide.
        """
        if isinstance(width, bool) or not isinstance(width, int) or width < 1:
            raise PlanError(
                f"tensor parallelism must be a whole number from 1 up, not {brief(width)}"
            )
        if not self._shares(width):
            widths = [n for n in range(1, min(self.heads, MOST_WIDTHS) + 1) if self._shares(n)]
            raise PlanError(
                f"tensor parallelism of {width} does not divide {self.heads} heads and"
                f" {self.kv_heads} KV heads: use {', '.join(map(str, widths))}"
            )
        return replace(self, heads=self.heads // width, kv_heads=max(1, self.kv_heads // width))

    def _shares(self, width: int) -> bool:
        uneven = self.kv_heads % width and width % self.kv_heads
        return self.heads % width == 0 and not uneven

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads

    @property
    def offset(self) -> int:
        """The aligned position of query 0: the last query is aligned with the last key."""
        return self.kv_seq - self.seq

    @property
    def softmax_scale(self) -> float:
        """The factor that scales Q K^T."""
        return float(self.head_dim**-0.5) if self.scale is None else float(self.scale)

    def allowed(self, q: Positions, kv: Positions) -> NDArray[np.bool_]:
        """Returns which queries `q` may see which keys `kv`: bool [len(q), len(kv)]."""
        return self.mask.allowed(np.asarray(q, dtype=np.int64) + self.offset, kv)


def check_request(work: object, ranks: object, taker: str) -> None:
    """Raises PlanError unless the arguments are a workload and a number of ranks."""
    if not isinstance(work, Workload):
        raise PlanError(f"{taker}: work must be an rl.Workload, not {brief(work)}")
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise PlanError(f"ranks must be a positive integer, not {brief(ranks)}")
