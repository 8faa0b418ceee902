"""Emitted programs of every kind of kernel, mask and dtype on one device, beside dense attention.

Torch programs have all ranks as threads of the device, JAX programs one rank.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ringloom.codegen import emit
from ringloom.planner.planning import plan
from ringloom.planner.workload import Workload

Row = dict[str, Any]
TIMES = 3.0  # the error of dense attention in the same dtype that a program may have
KINDS: list[tuple[str, str, dict[str, Any]]] = [  # schedule, mask, what else the workload has
    ("zigzag", "causal", {"dtype": "float16", "batch": 2}),
    ("zigzag", "causal", {"dtype": "float32"}),
    ("zigzag", "causal", {"seq": 2050, "head_dim": 64}),
    ("zigzag", "causal", {"head_dim": 256}),
    ("zigzag", "causal", {"v_head_dim": 64}),
    ("zigzag", "causal", {"head_dim": 192, "v_head_dim": 128, "kv_heads": 8}),
    ("zigzag", "causal", {"sinks": True}),
    ("zigzag", "prefix:500", {}),
    ("zigzag", "causal & documents:700,300,1048", {}),
    ("ring", "window:300", {}),
    ("ring", "window:300,200", {}),
    ("ring", "window:300", {"dtype": "float32"}),
    ("ring", "full", {"dtype": "float32", "heads": 3, "kv_heads": 3}),
    ("striped", "causal", {}),
    ("balanced", "full", {}),
    ("burst", "causal", {}),
    ("usp:ulysses=2", "window:300 & documents:700,300,1048", {}),
    ("ulysses", "documents:700,300,1048", {"kv_heads": 8}),
    ("allgather:layout=per-document", "causal & documents:700,300,1048", {}),
    ("mesh2d", "causal", {}),
    ("tree", "causal", {}),
    ("zigzag", "chunks:512 & causal", {}),
    ("halo", "window:300", {"kv_seq": 3000}),
]


def work_of(mask: str, more: dict[str, Any]) -> Workload:
    """A workload of `KINDS`."""
    usual = {"seq": 2048, "heads": 8, "kv_heads": 2, "head_dim": 128, "dtype": "bfloat16"}
    return Workload(mask=mask, **usual | more)


def exact_kinds(ranks: int, device: str = "cuda") -> Iterator[Row]:
    """Programs of all `KINDS` on threads of one device: the worst error over its limit."""
    for schedule, mask, more in KINDS:
        asked = work_of(mask, more)
        yield judged(
            f"torch, {schedule} under {mask}, {more}",
            asked,
            lambda whole: on_chip(schedule, asked, ranks, whole),  # noqa: B023  called at once
            device,
        )


def exact_kinds_of_jax() -> Iterator[Row]:
    """The same of JAX programs on one device."""
    if "cuda" not in jax_platforms():
        return
    for _, mask, more in KINDS:
        asked = work_of(mask, more)
        if asked.dtype != "float64":
            what = f"jax on one device, {mask}, {more}"
            yield judged(what, asked, lambda whole: by_jax(asked, whole))  # noqa: B023  at once


def jax_platforms() -> set[str]:
    """The platforms that JAX has devices of."""
    try:
        import jax
    except ImportError:
        return set()
    return {"cuda" if one.platform == "gpu" else one.platform for one in jax.devices()}


def judged(
    what: str, asked: Workload, run: Callable[[list[Any]], list[Any]], device: str = "cuda"
) -> Row:
    """The worst error of out and gradients, over that of dense attention in the same dtype."""
    import torch

    whole = random_arrays(asked, device)
    truth = masked_dense(asked, [x.double() for x in whole])
    own = masked_dense(asked, whole)
    try:
        results = run(whole)
    except Exception as error:  # one kind that fails is one row
        return {"what": what, "value": 1e9, "limit": TIMES, "said": f"{error!r}"[:400]}
    torch.cuda.is_available() and torch.cuda.synchronize()
    worst = 0.0
    for ours, dense_one, right in zip(results, own, truth, strict=True):
        error, usual = (float((x.double() - right).abs().max()) for x in (ours, dense_one))
        worst = max(worst, error / max(usual, 1e-13))
    return {"what": what, "value": worst, "limit": TIMES}


def random_arrays(asked: Workload, device: str) -> list[Any]:
    """q, k, v, dout and, where there are some, sinks."""
    import torch

    random = torch.Generator(device).manual_seed(0)
    dtype, batch, width = getattr(torch, asked.dtype), asked.batch, asked.v_head_dim
    shapes = [
        (batch, asked.heads, asked.seq, asked.head_dim),
        (batch, asked.kv_heads, asked.kv_seq, asked.head_dim),
        (batch, asked.kv_heads, asked.kv_seq, width),
        (batch, asked.heads, asked.seq, width),
        *([(asked.heads,)] if asked.sinks else []),
    ]
    return [torch.randn(*s, generator=random, device=device).to(dtype) for s in shapes]


def masked_dense(asked: Workload, arrays: list[Any]) -> list[Any]:
    """out, dq, dk, dv and, where there are some, the gradients of sinks; products in the dtype."""
    import torch

    q, k, v, dout, *sinks = arrays
    inputs = [x.detach().requires_grad_() for x in (q, k, v, *sinks)]
    seen = torch.from_numpy(asked.allowed(range(asked.seq), range(asked.kv_seq))).to(q.device)
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    keys, values = (x.repeat_interleave(asked.group, 1) for x in inputs[1:3])
    scores = (inputs[0] @ keys.mT).to(wide) * asked.softmax_scale
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks:
        column = inputs[3].to(wide)[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], 3)
    weights = scores.softmax(3).nan_to_num(0.0)[..., : asked.kv_seq].to(q.dtype)
    out = weights @ values
    return [out.detach(), *torch.autograd.grad(out, inputs, dout)]


def on_chip(schedule: str, asked: Workload, ranks: int, whole: list[Any]) -> list[Any]:
    """The results of a torch program, its ranks as threads, put together."""
    from in_memory.distributed import installed
    from in_memory.threads import on_threads
    from ringloom.runtimes.emitted import load

    program = installed(load(emit(plan(schedule, asked, ranks, pass_="both"), "torch")))
    sides = "q", "kv", "kv", "q"

    def body(group: Any) -> list[Any]:
        rank, sinks, name = group.rank(), whole[4:], group.group_name
        own = (program.shard(x, rank, side=s) for x, s in zip(whole, sides, strict=False))
        q, k, v, dout = (x.contiguous() for x in own)
        results = program.forward(q, k, v, *sinks, name, "", "", -1)
        return [results[0], *program.backward(dout, [q, k, v, *sinks, *results], name)]

    results = [*zip(*on_threads(ranks, body, 120.0)[0], strict=True)]
    joined = zip(results, ("q", "q", "kv", "kv"), strict=False)
    wholes = [program.unshard(parts, side=side) for parts, side in joined]
    return [*wholes, *(sum(parts) for parts in results[4:])]


def by_jax(asked: Workload, whole: list[Any]) -> list[Any]:
    """The results of a JAX program of one rank."""
    import jax
    import numpy as np
    import torch

    source = emit(plan("ring", asked, 1, pass_="both"), "jax")
    scope: dict[str, Any] = {"__name__": "emitted"}
    exec(compile(source, "<emitted>", "exec"), scope)
    mesh = jax.sharding.Mesh(np.array(jax.devices("cuda")[:1]), ("sp",))
    q, k, v, dout, *sinks = (jax.dlpack.from_dlpack(x) for x in whole)

    def both(*inputs: Any) -> list[Any]:
        def call(*x: Any) -> Any:
            return scope["attention"](*x[:3], mesh=mesh, **({"sinks": x[3]} if x[3:] else {}))

        out, pull_back = jax.vjp(call, *inputs)
        return [out, *pull_back(dout)]

    return [torch.from_dlpack(x) for x in jax.jit(both)(q, k, v, *sinks)]
