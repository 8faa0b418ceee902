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
        w('(q,), (k, v) = store.view("Q", q_blocks), store.view("KV", kv_blocks)')
        if has.sliced:
            w("q_heads, kv_heads = store.setup.common_heads(q_blocks[0], kv_blocks[0])")
            w("q = q[..., q_heads, :, :]")
            w("k, v = (x[..., kv_heads, :, :] for x in (k, v))")
        if has.signed:
            w("q = q * SIGN")
        with w.block("for call in store.setup.calls(q_blocks, kv_blocks):"):
            w("rows, columns = call.rows, call.columns")
            w("seen = k[..., columns, :], v[..., columns, :]")
            w("part = kernel(q[..., rows, :], *seen, call)")
            w(f'store.add("OUT", q_blocks, part, {"q_heads, " if has.sliced else ""}rows)')


def backward(w: Writer, has: Features) -> None:
    """The rectangle of the backward pass."""
    names = ["q", "dout", "stats"] if has.travelling else ["q", "dout", "out", "stats"]
    tensors = {"q": "Q", "dout": "DOUT", "out": "O", "stats": "STATS"}
    w.section("def attend_backward(store, q_blocks, kv_blocks):")
    with w.inside():
        w('"""One rectangle of the backward pass: its shares in dq, dk and dv."""')
        w(f"tensors = {json.dumps([tensors[name] for name in names])}")
        w(f"{', '.join(names)} = (store.view(t, q_blocks)[0] for t in tensors)")
        w('k, v = store.view("KV", kv_blocks)')
        if has.sliced:
            queries = ", ".join(names)
            w("q_heads, kv_heads = store.setup.common_heads(q_blocks[0], kv_blocks[0])")
            w(f"{queries} = (x[..., q_heads, :, :] for x in ({queries}))")
            w("k, v = (x[..., kv_heads, :, :] for x in (k, v))")
        if has.signed:
            w("q = q * SIGN")
        with w.block("for call in store.setup.calls(q_blocks, kv_blocks):"):
            w("rows, columns = call.rows, call.columns")
            out = "stand_in(dout[..., rows, :], stats[..., rows, 1:])"
            with w.block("dq, dk, dv = kernel_backward("):
                w("dout[..., rows, :],")
                w("q[..., rows, :],")
                w("k[..., columns, :],")
                w("v[..., columns, :],")
                w(f"{out if has.travelling else 'out[..., rows, :]'},")
                w("stats[..., rows, 0],")
                w("call,")
            w(")")
            if has.signed:
                w("dq = dq * SIGN")
            q_at, kv_at = ("q_heads, ", "kv_heads, ") if has.sliced else ("", "")
            w(f'store.add("DQ", q_blocks, [dq], {q_at}rows)')
            w(f'store.add("DKV", kv_blocks, [dk, dv], {kv_at}columns)')
