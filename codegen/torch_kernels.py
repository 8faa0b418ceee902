"""torch_kernels   the text of a torch program that computes: kernels, merging, both passes."""

MERGE = '''
def wide(dtype):
    """What partial sums are kept in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def merge(total, part):
    """Add a part (output, lse) to the total of the same rows, in place."""
    (out, lse), (o, more) = total, part
    weight = torch.sigmoid(more - lse).nan_to_num(0.0)
    out.lerp_(o.to(out.dtype), weight)
    lse.copy_(torch.logaddexp(lse, more))
'''

BIAS = '''
def bias(call, q):
    """What is added to the scores of a call: 0 where a row sees a column, else -inf."""
    if call.spans is None:
        return None
    first, last = torch.as_tensor(call.spans, device=q.device)[..., None]
    column = torch.arange(count(call.columns), device=q.device)
    seen = ((column >= first) & (column < last)).any(dim=0)
    zeros = torch.zeros(seen.shape, dtype=q.dtype, device=q.device)
    return zeros.masked_fill_(~seen, -torch.inf)
'''

KERNELS = '''
def kernel(q, k, v, call):
    """One kernel call: its output, and the log-sum-exp of its scores [..., rows, 1]."""
    causal = call.kind == "causal"
    if not q.is_cuda:
        # In 16 bit this kernel would round every part before it is merged.
        q, k, v = (x.to(wide(x.dtype)) for x in (q, k, v))
        op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        o, lse = op(q, k, v, 0.0, causal, attn_mask={bias}, scale={scale})
    elif {flash}q.dtype != torch.float32:
        op = torch.ops.aten._scaled_dot_product_flash_attention
        o, lse = op(q, k, v, 0.0, causal, False, scale={scale})[:2]
    else:
        k, v = per_query_head(k, q), per_query_head(v, q)
        op = torch.ops.aten._scaled_dot_product_efficient_attention
        o, lse = op(q, k, v, {cuda_bias}, True, 0.0, causal, scale={scale})[:2]
    return o, lse[..., : q.shape[-2]].unsqueeze(-1)
'''

KERNELS_BACKWARD = '''
def kernel_backward(dout, q, k, v, out, lse, call):
    """The share of one kernel call in dq, dk and dv, given the whole output and its lse."""
    causal, lse = call.kind == "causal", lse.contiguous()
    if not q.is_cuda:
        dout, q, k, v, out = (x.to(wide(x.dtype)) for x in (dout, q, k, v, out))
        op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        mask = {bias}
        return op(dout, q, k, v, out, lse, 0.0, causal, attn_mask=mask, scale={scale})
    out = out.to(q.dtype)
    if {flash}q.dtype != torch.float32:
        op = torch.ops.aten._scaled_dot_product_flash_attention_backward
        m, n = q.shape[-2], k.shape[-2]
        seed = torch.zeros(2, dtype=torch.uint64, device=q.device)
        rest = (None, None, m, n, 0.0, causal, seed, seed[:0])
        return op(dout, q, k, v, out, lse, *rest, scale={scale})
    heads, seed = k.shape[-3], torch.zeros((), dtype=torch.int64, device=q.device)
    k, v = per_query_head(k, q), per_query_head(v, q)
    lse = torch.nn.functional.pad(lse, (0, -lse.shape[-1] % 32), value=torch.inf)
    op = torch.ops.aten._scaled_dot_product_efficient_attention_backward
    mask, wanted = {cuda_bias}, [True, True, True, False]
    rest = (mask, out, lse, seed, seed, 0.0, wanted, causal)
    dq, dk, dv, _ = op(dout, q, k, v, *rest, scale={scale})
    dk, dv = (x.unflatten(-3, (heads, -1)).sum(-3) for x in (dk, dv))
    return dq, dk, dv
'''

PER_QUERY_HEAD = '''
def per_query_head(x, q):
    """K or V once per query head, for a kernel that cannot share them."""
    return x.repeat_interleave(q.shape[-3] // x.shape[-3], dim=-3)
'''

CUDA_BIAS = '''
def aligned_bias(call, q):
    """The bias in rows of a multiple of 16 elements, as CUDA kernels read it."""
    if call.spans is None:
        return None
    mask = bias(call, q)
    room = torch.nn.functional.pad(mask, (0, -mask.shape[-1] % 16))
    return room[:, : mask.shape[-1]].expand(*q.shape[:-1], -1)
'''

STAND_IN = '''
def stand_in(dout, delta):
    """A vector whose product with dout is delta = rowsum(dout * out), all that kernels need of
    out: so out itself need not travel."""
    tiny = torch.finfo(delta.dtype).tiny
    largest = dout.abs().amax(dim=-1, keepdim=True).to(delta.dtype).clamp_min(tiny)
    unit = dout / largest  # what dout squared is out of range for, this is not
    norm = (unit * unit).sum(dim=-1, keepdim=True)
    return unit * (delta / largest / norm).nan_to_num(0.0, 0.0, 0.0)
'''
