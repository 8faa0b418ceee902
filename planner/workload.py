"""workload ::= Workload(seq, kv_seq, heads, kv_heads, head_dim, batch, dtype, mask,
                      scale=None, v_head_dim=None, sinks=False)

The attention to compute, independent of devices: softmax(Q K^T * scale) V under a mask.

With sinks, the softmax of every query head includes one more logit, which has no value vector. With
(o, lse) over the keys, the result is o * sigmoid(lse - sink), and lse becomes logaddexp(lse, sink).
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
LARGEST_SIZE = 2**31 - 1  # of any field; tile areas up to this length are exact in 64 bits


@dataclass(frozen=True, init=False, repr=False)
class Workload(OneLine):
    """The attention to compute: sizes in tokens and heads, dimensions in elements, mask and dtype.

    `head_dim` is the dimension of queries and keys, `v_head_dim` that of values and results, the
    same by default. `kv_seq` defaults to `seq`, `kv_heads` to `heads`, `scale` to 1/sqrt(head_dim).
    `mask` may be a text as on the command line: "causal & window:4096". `sinks` adds a learned
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
        mask: Mask | str = Causal(),  # noqa: B008  frozen, so a shared instance is safe
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
            if not 1 <= value <= LARGEST_SIZE:
                raise PlanError(f"{field} must be between 1 and {LARGEST_SIZE}, not {value}")
            object.__setattr__(self, field, int(value))
        if self.heads % self.kv_heads:
            raise PlanError(
                f"{self.heads} query heads cannot share {self.kv_heads} KV heads evenly:"
                " heads must be a multiple of kv_heads"
            )
        if dtype not in DTYPES:
            raise PlanError(unknown("dtype", dtype, DTYPES))
        parsed = parse(mask) if isinstance(mask, str) else check_mask(mask)
        if scale is not None:
            is_number = isinstance(scale, int | float) and not isinstance(scale, bool)
            if not is_number or not abs(scale) <= sys.float_info.max:  # NaN fails, too
                raise PlanError(f"scale must be a finite number, not {brief(scale)}")
        if not isinstance(sinks, bool):
            raise PlanError(
                f"sinks must be True or False, not {brief(sinks)}: pass the logits to run"
            )
        mask = parsed.up_to(self.kv_seq)
        options = {"dtype": dtype, "mask": mask, "scale": scale, "sinks": sinks}
        for field, option in options.items():
            object.__setattr__(self, field, option)
        self.mask.check(self.seq, self.kv_seq)

    @property
    def python(self) -> str:
        """The Python that builds the workload, without defaults."""
        defaults = {name: p.default for name, p in signature(Workload).parameters.items()}
        defaults |= {"kv_seq": self.seq, "kv_heads": self.heads, "v_head_dim": self.head_dim}
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        arguments = (f"{k}={python(value)}" for k, value in values.items() if value != defaults[k])
        return f"Workload({', '.join(arguments)})"

    def split(self, width: int) -> "Workload":
        """Returns the attention of one of `width` tensor-parallel ranks, which divide the heads.

        If there are fewer KV heads than ranks, several ranks have the same KV head. If `width` does
        not divide the heads, raises PlanError with the widths that do.
        """
        if isinstance(width, bool) or not isinstance(width, int) or width < 1:
            raise PlanError(f"tensor parallelism must be a positive integer, not {brief(width)}")
        if not self._shares(width):
            widths = [n for n in range(1, min(self.heads, MOST_WIDTHS) + 1) if self._shares(n)]
            raise PlanError(
                f"tensor parallelism of {width} does not divide {self.heads} heads and"
                f" {self.kv_heads} KV heads: use {', '.join(map(str, widths))}"
            )
        return replace(self, heads=self.heads // width, kv_heads=max(1, self.kv_heads // width))

    def _shares(self, width: int) -> bool:
        is_uneven = self.kv_heads % width and width % self.kv_heads
        return self.heads % width == 0 and not is_uneven

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


def check_request(work: object, ranks: object, function: str) -> None:
    """Raises PlanError unless the arguments are a workload and a number of ranks."""
    if not isinstance(work, Workload):
        raise PlanError(f"{function}: work must be an rl.Workload, not {brief(work)}")
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise PlanError(f"ranks must be a positive integer, not {brief(ranks)}")
