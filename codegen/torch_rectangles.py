"""torch_rectangles   the text of one rectangle: queries of some blocks meet keys of some blocks."""

import json
from dataclasses import dataclass

from codegen.writer import Writer


@dataclass(frozen=True)
class Features:
    """What a program's rectangles have to deal with.

    masked: rows of a call may be an index; sliced: blocks have slices of the heads; signed: the
    scale is not positive; travelling: the query side travels in the backward pass, without out.
    """

    masked: bool
    sliced: bool
    signed: bool
    travelling: bool


def forward(w: Writer, has: Features) -> None:
    """The rectangle of the forward pass."""
    w.section("def attend(store, q_blocks, kv_blocks):")
    with w.inside():
        w('"""One rectangle of the forward pass: some blocks of queries meet some of keys."""')
        w('q, kv = store.view("Q", q_blocks), store.view("KV", kv_blocks)')
        w('total = store.sums("OUT", q_blocks)')
        if has.sliced:
            w("q_heads, kv_heads = store.setup.common_heads(q_blocks[0], kv_blocks[0])")
            w("q, total = q[..., q_heads, :, :], total[..., q_heads, :, :]")
            w("kv = kv[..., kv_heads, :, :]")
        if has.signed:
            w("q = q * SIGN")
        with w.block("for call in store.setup.calls(q_blocks, kv_blocks):"):
            w("k, v = kv[..., call.columns, :]")
            w("o, lse = kernel(q[..., call.rows, :], k, v, call)")
            w("part = total[..., call.rows, :]")
            w("merge(part, o, lse)")
            if has.masked:
                with w.block("if not isinstance(call.rows, slice):"):
                    w("total[..., call.rows, :] = part")


def backward(w: Writer, has: Features) -> None:
    """The rectangle of the backward pass."""
    names = ["q", "dout", "stats"] if has.travelling else ["q", "dout", "out", "stats"]
    tensors = {"q": "Q", "dout": "DOUT", "out": "O", "stats": "STATS"}
    w.section("def attend_backward(store, q_blocks, kv_blocks):")
    with w.inside():
        w('"""One rectangle of the backward pass: its shares in dq, dk and dv."""')
        w(f"tensors = {json.dumps([tensors[name] for name in names])}")
        w(f"{', '.join(names)} = (store.view(t, q_blocks) for t in tensors)")
        w('kv = store.view("KV", kv_blocks)')
        w('dq_sum, dkv_sum = store.sums("DQ", q_blocks), store.sums("DKV", kv_blocks)')
        if has.sliced:
            queries = ", ".join([*names, "dq_sum"])
            w("q_heads, kv_heads = store.setup.common_heads(q_blocks[0], kv_blocks[0])")
            w(f"of_queries = {queries}")
            w(f"{queries} = (x[..., q_heads, :, :] for x in of_queries)")
            w("kv, dkv_sum = (x[..., kv_heads, :, :] for x in (kv, dkv_sum))")
        if has.signed:
            w("q = q * SIGN")
        with w.block("for call in store.setup.calls(q_blocks, kv_blocks):"):
            w("rows, columns = call.rows, call.columns")
            w("k, v = kv[..., columns, :]")
            out = "stand_in(dout[..., rows, :], stats[..., rows, 1:])"
            with w.block("dq, dk, dv = kernel_backward("):
                w("dout[..., rows, :],")
                w("q[..., rows, :],")
                w("k,")
                w("v,")
                w(f"{out if has.travelling else 'out[..., rows, :]'},")
                w("stats[..., rows, 0],")
                w("call,")
            w(")")
            w(f"dq_sum[..., rows, :] += dq{' * SIGN' if has.signed else ''}")
            w("dkv_sum[0, ..., columns, :] += dk")
            w("dkv_sum[1, ..., columns, :] += dv")
