"""Faults planted in the source of JAX rings, and the kinds that an audit may name them by.

Of a program that we emit, and of the public ring of a checkout of haoliuhl/ringattention.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import ringloom as rl
from ringloom.auditing.adapters import jax_ring
from ringloom.auditing.cases import case_of
from ringloom.codegen import emit
from ringloom.runtimes.audit import Report
from ringloom.runtimes.audit.examining import examine
from ringloom.runtimes.audit.running.on_jax import Asker
from ringloom.runtimes.emitted import load

RANKS = 4
FILE = Path("ringattention", "ringattention_jax.py")


@dataclass(frozen=True)
class Edit:
    """A fault: its name, the kinds it may be called, and a text that is replaced by another."""

    name: str
    kinds: tuple[str, ...]
    old: str
    new: str

    def of(self, source: str) -> str:
        """Returns the source with the fault."""
        assert self.old in source, f"{self.name}: the source has changed"
        return source.replace(self.old, self.new)


def audited(attend: Any, work: rl.Workload, ranks: int = RANKS, layout: Any = None) -> Report:
    case = case_of(work, ranks, layout or "contiguous")
    return examine(Asker.on_devices(attend, case))


def audited_program(edit: Edit) -> Report:
    """Audits our ring with a fault."""
    work = rl.Workload(64, heads=4, kv_heads=2, head_dim=16, dtype="float32")
    source = emit(rl.plan("ring", work, RANKS, pass_="both"), "jax")
    program = load(edit.of(source))
    return audited(partial(call, program), work)


def audited_checkout(checkout: Path, folder: Path, edit: Edit) -> Report:
    """Audits the public ring of a checkout with a fault, in a folder of its own."""
    place = folder / FILE
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(edit.of((checkout / FILE).read_text("utf-8")), encoding="utf-8")
    work = rl.Workload(64, heads=4, head_dim=16, batch=2, dtype="float32")
    return audited(jax_ring(str(folder)), work)


def right_program(seed: int) -> tuple[str, Report]:
    """Audits a program that is right: a drawn schedule, mask, length, heads and dtype."""
    draw = Random(seed)
    ranks = draw.choice([1, 2, 3, 4, 5, 7])
    heads, kv_heads = draw.choice([(1, 1), (2, 2), (4, 2), (3, 1)])
    seq = draw.randrange(4 * ranks, 12 * ranks)
    first = draw.randrange(1, seq)
    masks = [
        "causal",
        "full",
        f"causal & window:{first}",
        f"causal & documents:{first},{seq - first}",
    ]
    dtype = draw.choice(["float32", "float32", "bfloat16", "float64"])
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": 8}
    work = rl.Workload(seq, **sizes, dtype=dtype, mask=draw.choice(masks))
    schedule = draw.choice(["ring", "zigzag", "striped", "allgather"])
    program = load(emit(rl.plan(schedule, work, ranks, pass_="both"), "jax"))
    layout = {
        side: [program.shard(np.arange(1, seq + 1), rank, 0, side) - 1 for rank in range(ranks)]
        for side in ("q", "kv")
    }
    attend = partial(call, program)
    return f"{schedule} on {ranks}, {work.python}", audited(attend, work, ranks, layout)


def call(program: Any, q: Any, k: Any, v: Any, mesh: Any) -> Any:
    return program.attention(q, k, v, mesh=mesh)


def right_ring(checkout: Path, ranks: int, block: int | None, dtype: str) -> Report:
    """Audits the public ring as it is, which cuts each shard into pieces of three tokens."""
    mask = {None: "full", 1: "causal"}.get(block, f"block-causal:{block}")
    work = rl.Workload(9 * ranks, heads=2, head_dim=8, dtype=dtype, mask=mask)
    return audited(jax_ring(str(checkout), block=block, chunk=3), work, ranks)


AHEAD = "lax.cond(rank >= 3, lambda: merge_attention(output, [q], kv),"
TWICE = "lax.cond(rank >= 3, lambda: merge_attention(merge_attention(output, [q], kv), [q], kv),"
RETURN = "return tuple(narrow([*dq, *dkv], dout))"
TRIANGLE = "jnp.where(jnp.tri(len(scores), dtype=bool)"
OURS = [
    Edit(
        "lost block", ("block lost",), "rank >= step, lambda: merge", "rank > step, lambda: merge"
    ),
    Edit("doubled block", ("attended twice",), AHEAD, TWICE),
    Edit(
        "blocks of the future",
        ("future leak",),
        "rank >= step, lambda: merge",
        "rank >= 0, lambda: merge",
    ),
    Edit(
        "one key of the future",
        ("off by one", "future leak"),
        TRIANGLE,
        TRIANGLE.replace("dtype", "k=1, dtype"),
    ),
    Edit(
        "no own key",
        ("off by one", "keys lost"),
        TRIANGLE,
        TRIANGLE.replace("dtype", "k=-1, dtype"),
    ),
    Edit("another way around", ("another mask",), "[((r - 1) % RANKS, r)", "[((r + 1) % RANKS, r)"),
    Edit(
        "average of partials",
        ("unmerged partials",),
        "return out + share * (part - out), total",
        "return out + 0.5 * (part - out), total",
    ),
    Edit(
        "naive exponentials",
        ("overflow",),
        "jnp.maximum(top, scores.max(1, keepdims=True))",
        "jnp.zeros_like(scores[:, :1])",
    ),
    Edit("scale", ("wrong scale",), "SCALE = 16**-0.5", "SCALE = 15**-0.5"),
    Edit(
        "heads of keys",
        ("wrong GQA group",),
        "[jnp.repeat(x, queries[0].shape[1] // x.shape[1], 1) for x in keys]",
        "[jnp.tile(x, (1, queries[0].shape[1] // x.shape[1], 1, 1)) for x in keys]",
    ),
    Edit(
        "16-bit keys",
        ("imprecise",),
        "    kv = [k, v]\n    output",
        "    kv = [k.astype(jnp.bfloat16).astype(k.dtype), v]\n    output",
    ),
    Edit("no delta", ("wrong gradient",), "- delta[rows].T", "- 0 * delta[rows].T"),
    Edit(
        "scores' gradients not scaled",
        ("gradient scaled",),
        "delta[rows].T) * SCALE",
        "delta[rows].T)",
    ),
    Edit(
        "gradients not brought home",
        ("gradient lost",),
        "dkv = add(dkv, exchange(visiting_dkv, axis, PAIRS))",
        "",
    ),
    Edit(
        "zeroed dq of a head",
        ("gradient lost",),
        RETURN,
        f"dq = [dq[0].at[:, 1].set(0)]\n    {RETURN}",
    ),
    Edit(
        "full in the backward pass",
        ("gradient leak", "future leak"),
        "p = jnp.where(jnp.tri(len(p), dtype=bool).T, p, 0)",
        "pass",
    ),
]

MASK = "(query_idx < key_idx) * jnp.finfo"
WEIGHTS = "exp_weights = jnp.exp(attn_weights - max_score_chunk[..., None])"
GRADIENTS = "dq, dk, dv = dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(k.dtype)"
PUBLIC = [
    Edit(
        "lost block",
        ("block lost",),
        "xs=jnp.arange(0, axis_size))\n    output",
        "xs=jnp.arange(0, axis_size - 1))\n    output",
    ),
    Edit(
        "doubled block",
        ("attended twice",),
        "xs=jnp.arange(0, axis_size))\n    output",
        "xs=jnp.arange(0, axis_size + 1))\n    output",
    ),
    Edit("one key of the future", ("off by one", "future leak"), MASK, MASK.replace("<", "+ 1 <")),
    # query 0, which has no key then, attends its whole chunk
    Edit("no own key", ("off by one", "another mask"), MASK, MASK.replace("<", "- 1 <")),
    Edit(
        "full on the diagonal", ("future leak", "mask ignored"), MASK, MASK.replace("<", "+ 64 <")
    ),
    Edit(
        "another way around",
        ("another mask",),
        "(i, (i + 1) % axis_size) for i in range(axis_size)]), (k, v))",
        "(i, (i - 1) % axis_size) for i in range(axis_size)]), (k, v))",
    ),
    Edit(
        "keys that stay",
        ("another mask", "block lost"),
        "(i, (i + 1) % axis_size) for i in range(axis_size)]), (k, v))",
        "(i, i) for i in range(axis_size)]), (k, v))",
    ),
    Edit(
        "partials not corrected",
        ("unmerged partials",),
        "numerator_chunk * correction + exp_values",
        "numerator_chunk + exp_values",
    ),
    Edit(
        "naive exponentials",
        ("overflow",),
        "max_score_chunk = lax.stop_gradient(max_score_chunk)",
        "max_score_chunk = jnp.zeros_like(max_score_chunk)",
    ),
    Edit("scale", ("wrong scale",), "scale = jnp.sqrt(q.shape[-1])", "scale = q.shape[-1]"),
    Edit(
        "16-bit weights",
        ("imprecise",),
        WEIGHTS + "\n            exp_values",
        WEIGHTS + ".astype(jnp.bfloat16).astype(dtype)\n            exp_values",
    ),
    Edit("no delta", ("wrong gradient",), "(ds - dl_part)", "ds"),
    Edit(
        "dk not scaled",
        ("gradient scaled",),
        'jnp.einsum("bqhd,bhqk->bkhd", q_chunk, dl) / scale',
        'jnp.einsum("bqhd,bhqk->bkhd", q_chunk, dl)',
    ),
    Edit(
        "dv of weights that are not divided",
        ("wrong gradient", "gradient scaled"),
        'jnp.einsum("bhqk,bqhd->bkhd", exp_weights, g_chunk)',
        'jnp.einsum("bhqk,bqhd->bkhd", exp_weights * denominator_chunk[..., None], g_chunk)',
    ),
    Edit(
        "gradients that stay",
        ("gradient leak", "wrong gradient", "gradient lost"),
        "k, v, dk, dv = map(lambda x: lax.ppermute(x, axis_name, perm=[(i,\n"
        "            (i + 1) % axis_size) for i in range(axis_size)]), (k, v, dk, dv))",
        "k, v = map(lambda x: lax.ppermute(x, axis_name, perm=[(i,\n"
        "            (i + 1) % axis_size) for i in range(axis_size)]), (k, v))",
    ),
    Edit(
        "masks of the next block in the backward pass",
        ("gradient leak",),
        "xs=jnp.arange(0, axis_size))\n    dq",
        "xs=jnp.arange(1, axis_size))\n    dq",
    ),
    Edit(
        "zeroed dq of a head",
        ("gradient lost",),
        GRADIENTS,
        f"{GRADIENTS}\n    dq = dq.at[:, :, 1].set(0)",
    ),
]
