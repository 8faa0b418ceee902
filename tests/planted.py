"""Faults planted in attention of six implementations, and kinds that audits may name them by."""

from collections.abc import Callable
from functools import partial
from typing import Any

import ringloom as rl
from planted_subtle import SUBTLE, long_ring
from planting import (
    Fault,
    Subject,
    calibrated,
    emitted,
    equal_lse,
    gradients,
    halves,
    inputs,
    naive,
    next_rank,
    noisy,
    on_diagonal,
    one_key_lost,
    outputs,
    remembers,
    replaced,
    rounded,
    skipping,
    stale,
    wrapped,
    zeroed_head,
)
from ringloom.auditing.adapters import pytorch_ring, ring_attention_pytorch
from ringloom.runtimes.peers import of_torch

WORK = rl.Workload(64, heads=4, kv_heads=2, head_dim=16, batch=2, dtype="float32")

SUBJECTS: dict[str, Callable[[], Subject]] = {
    "ring": partial(emitted, "ring", "contiguous", WORK),
    "zigzag": partial(emitted, "zigzag", "zigzag", WORK),
    "striped": partial(emitted, "striped", "striped", WORK),
    "long": long_ring,
    "head-tail": lambda: Subject("head-tail", pytorch_ring(), equal_heads(), "zigzag", of_torch),
    "all-to-all": lambda: Subject(
        "all-to-all",
        pytorch_ring(balanced=False, exchange="all-to-all"),
        equal_heads(),
        "contiguous",
        of_torch,
    ),
    "package": lambda: Subject(
        "package", ring_attention_pytorch(), equal_heads(), "contiguous", None, "forward"
    ),
}


def equal_heads() -> rl.Workload:
    return rl.Workload(64, heads=4, head_dim=16, batch=2, dtype="float32")


WRAPPED = [
    Fault("scale", ("wrong scale",), inputs(lambda q, k, v: (q * 1.1, k, v))),
    Fault(
        "heads of keys",
        ("wrong GQA group",),
        inputs(lambda q, k, v: (q, k.roll(1, 1), v.roll(1, 1))),
    ),
    Fault("batch rows", ("wrong batch row",), inputs(lambda q, k, v: (q, k.flip(0), v.flip(0)))),
    Fault("stale keys", ("stale keys",), partial(wrapped, stale)),
    Fault("zeroed dq of a head", ("gradient lost",), gradients(0, zeroed_head)),
    Fault("zeroed dk of a head", ("gradient lost",), gradients(1, zeroed_head)),
    Fault("doubled dv", ("gradient scaled",), gradients(2, lambda grad: 2 * grad)),
    Fault("dk of a key lost", ("gradient lost",), gradients(1, one_key_lost)),
    Fault("noise", ("changes between runs",), outputs(noisy)),
    Fault("dtype", ("wrong dtype",), outputs(lambda out: out.double())),
    Fault("shape", ("wrong shape",), outputs(lambda out: out.transpose(1, 2))),
    Fault("memory of the call before", ("depends on calls",), partial(wrapped, remembers)),
    Fault("memory of the largest value", ("depends on calls",), partial(wrapped, calibrated)),
    Fault(
        "keys of the next rank",
        ("another mask", "stale keys"),
        inputs(lambda q, k, v: (q, next_rank(k), next_rank(v))),
    ),
    Fault("16-bit keys", ("imprecise",), inputs(lambda q, k, v: (q, rounded(k), rounded(v)))),
]
BACKWARD = {"zeroed dq of a head", "zeroed dk of a head", "doubled dv", "dk of a key lost"}


def part(name: str, *kinds: str, **names: Any) -> Fault:
    return Fault(name, kinds, partial(replaced, names))


LOST, TWICE = ("block lost", "keys lost"), ("attended twice",)
OURS = [
    part("lost block", *LOST, merge_attention=skipping(1)),
    part("doubled block", *TWICE, merge_attention=skipping(1, 2)),
    part("lost gradients of a block", "gradient lost", add_gradients=skipping(1)),
    part(
        "doubled gradients of a block",
        "gradient scaled",
        "attended twice",
        add_gradients=skipping(1, 2),
    ),
    part("one key of the future", "off by one", "future leak", attend=on_diagonal(1)),
    part("no own key", "off by one", "keys lost", attend=on_diagonal(-1)),
    part("full on the diagonal", "future leak", "mask ignored", attend=on_diagonal(None)),
    part("average of partials", "unmerged partials", merge=halves),
    part("naive exponentials", "overflow", attend=naive),
]
TEMPLATE = [
    part("lost block", *LOST, step=skipping(1)),
    part("doubled block", *TWICE, step=skipping(1, 2)),
    part("one key of the future", "off by one", "future leak", _forward=on_diagonal(1)),
    part("full on the diagonal", "future leak", "mask ignored", _forward=on_diagonal(None)),
    part("equal partials", "unmerged partials", step=equal_lse),
    part("naive exponentials", "overflow", _forward=naive),
]


def faults_of(name: str) -> list[Fault]:
    """The faults that are planted in an implementation."""
    if name == "long":
        return SUBTLE
    if name == "package":
        return [f for f in WRAPPED if f.name not in {*BACKWARD, "heads of keys"}]
    if name in ("head-tail", "all-to-all"):
        return [*WRAPPED[:9], *TEMPLATE]
    return [*WRAPPED, *OURS] if name == "zigzag" else [*WRAPPED[4:9], *OURS]
