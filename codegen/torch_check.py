"""torch_check   the text of a torch program's self-check: dense attention, launch, exit code."""

DENSE = '''
def dense(q, k, v, dout, rows, offset):
    """Output of some query rows by the definition, and their shares in dq, dk and dv."""
    scores = torch.einsum("bhid,bhjd->bhij", q[:, :, rows], k) * SCALE
    scores = scores.masked_fill(~allowed(rows, k.shape[2], offset), -torch.inf)
    weights = torch.softmax(scores, dim=-1).nan_to_num(0.0)
    out = weights @ v
    slope = torch.einsum("bhid,bhjd->bhij", dout[:, :, rows], v)
    slope = weights * (slope - (out * dout[:, :, rows]).sum(-1, keepdim=True)) * SCALE
    dk = torch.einsum("bhij,bhid->bhjd", slope, q[:, :, rows])
    dv = torch.einsum("bhij,bhid->bhjd", weights, dout[:, :, rows])
    return out, slope @ k, dk, dv


def allowed(rows, kv_seq, offset):
    """Which keys the query rows may see, by the definition of the mask."""
    i, j = rows[:, None] + offset, torch.arange(kv_seq, device=rows.device)
    seen = torch.zeros(len(rows), kv_seq, dtype=torch.bool, device=rows.device)
    for i0, i1, j0, j1, low, high in MASK.tolist():
        box = (i0 <= i) & (i < i1) & (j0 <= j) & (j < j1)
        seen |= box & (low <= j - i) & (j - i <= high)
    return seen
'''

CHECK = '''
def check(group, device, seq, kv_seq, dtype):
    """Compare output and gradients on random inputs with dense attention in float64.

    Every rank compares its own rows. Above 16k tokens only sampled rows get a gradient and are
    compared. Returns the errors of out, dq, dk, dv, and those of dense attention in `dtype`.
    """
    rank, offset = group.rank(), kv_seq - seq
    random = torch.Generator().manual_seed(0)
    shapes = [(1, HEADS, seq, HEAD_DIM), *[(1, KV_HEADS, kv_seq, HEAD_DIM)] * 2]
    q, k, v, dout = (
        torch.randn(shape, generator=random, dtype=torch.float64).to(device, dtype)
        for shape in (*shapes, shapes[0])
    )
    chosen = torch.arange(0, seq, max(1, seq // 16384 and seq // 256), device=device)
    kept = torch.zeros(seq, dtype=dtype, device=device)
    kept[chosen] = 1
    dout = dout * kept[:, None]
    mine = torch.as_tensor(positions(rank, seq), device=device)
    keys = torch.as_tensor(kv_positions(rank, kv_seq), device=device)
    rows = mine[torch.isin(mine, chosen)]

    local = [x[:, :, part] for x, part in ((q, mine), (k, keys), (v, keys))]
    local = [x.contiguous().requires_grad_({backward}) for x in local]
    out = attention_of_length(*local, group, seq, kv_seq)
{grads}
    inputs = q, k, v, dout
    exact = dense_parts(*[x.double() for x in inputs], rows, offset, group)
    rough = exact
    if dtype.itemsize < 4:
        rough = dense_parts(*inputs, rows, offset, group)
    errors, floors = [], []
    parts = (None, None, keys, keys)
    for a, b, c, part in zip(found, exact, rough, parts, strict=False):
        b, c = (x if part is None else x[:, :, part] for x in (b, c))
        errors.append(worst(a, b, group))
        floors.append(worst(c, b, group))
    return errors, floors


def dense_parts(q, k, v, dout, rows, offset, group):
    """Dense attention of this rank's rows, a few at a time; dk and dv are summed over ranks."""
    share = HEADS // KV_HEADS
    k, v = k.repeat_interleave(share, dim=1), v.repeat_interleave(share, dim=1)
    outs, dqs = [q[:, :, :0].double()], [q[:, :, :0].double()]
    dk, dv = torch.zeros_like(k).double(), torch.zeros_like(v).double()
    for some in rows.split(max(1, 2**24 // (HEADS * k.shape[2]))):
        out, dq, dk_part, dv_part = dense(q, k, v, dout, some, offset)
        outs.append(out.double())
        dqs.append(dq.double())
        dk += dk_part
        dv += dv_part
    sums = [x.unflatten(1, (KV_HEADS, share)).sum(2) for x in (dk, dv)]
    for x in sums:
        dist.all_reduce(x, group=group)
    return torch.cat(outs, 2), torch.cat(dqs, 2), *sums


def worst(a, b, group):
    """The largest difference on any rank."""
    error = torch.zeros(1, dtype=torch.float64, device=a.device)
    if a.numel():
        error = (a.double() - b.double()).abs().max().reshape(1)
        error = error.nan_to_num(torch.inf)
    dist.all_reduce(error, op=dist.ReduceOp.MAX, group=group)
    return error.item()
'''

GRADS = """
    here = torch.isin(mine, rows)
    found = [out.detach()[:, :, here]]
    out.backward(dout[:, :, mine])
    found += [local[0].grad[:, :, here], local[1].grad, local[2].grad]
"""

NO_GRADS = """
    found = [out[:, :, torch.isin(mine, rows)]]
"""

MAIN = '''
def judge(rank, seq, kv_seq, dtype):
    """Run the check on one rank of the world; True if every error is small enough."""
    cuda = dist.get_backend() == "nccl"
    device = torch.device("cuda", torch.cuda.current_device() if cuda else 0)
    device = device if cuda else torch.device("cpu")
    errors, floors = check(dist.group.WORLD, device, seq, kv_seq, dtype)
    limits = {{torch.float64: (1e-12, 1e-11), torch.float32: (5e-6, 2e-5)}}
    first, rest = limits.get(dtype, (0.0, 0.0))
    good = True
    for name, error, floor, limit in zip(
        ("out", "dq", "dk", "dv"),
        errors,
        floors,
        (first, rest, rest, rest),
        strict=False,
    ):
        limit = limit or 2 * floor
        good = good and error <= limit
        if rank == 0:
            print(f"{{name:3}} error {{error:.1e}}, at most {{limit:.1e}}")
    if rank == 0:
        print("exact" if good else "WRONG", f"at {{seq}} queries and {{kv_seq}} keys")
    return good


def worker(rank, folder, *what):
    """One of the ranks that this script spawns."""
    torch.set_num_threads(max(1, torch.get_num_threads() // P))
    where = "file://" + folder + "/meeting-point"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=P)
    good = judge(rank, *what)
    dist.destroy_process_group()
    sys.exit(0 if good else 1)


def main():
    """Check this file against dense attention, on ranks of torchrun or on ranks of its own."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seq", type=int, default={default}, help="queries")
    parser.add_argument(
        "--dtype",
        choices=["float64", "float32", "bfloat16", "float16"],
        help="default: float64, on GPUs the plan's",
    )
    options = parser.parse_args()
    if options.seq < 1{fixed}:
        parser.error({complaint})
    kv_seq = max(1, round(options.seq * KV_SEQ / SEQ))
    if "RANK" in os.environ:
        gpu = torch.cuda.is_available()
        if gpu:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("nccl" if gpu else "gloo")
        dtype = options.dtype or (PLAN["dtype"] if gpu else "float64")
        good = judge(dist.get_rank(), options.seq, kv_seq, getattr(torch, dtype))
        dist.destroy_process_group()
        return 0 if good else 1
    dtype = getattr(torch, options.dtype or "float64")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    with tempfile.TemporaryDirectory() as folder:
        what = folder, options.seq, kv_seq, dtype
        ranks = [context.Process(target=worker, args=(r, *what)) for r in range(P)]
        for process in ranks:
            process.start()
        return 0 if all_well(ranks) else 1


def all_well(ranks):
    """Wait for all ranks; when one fails, end the others."""
    while any(process.is_alive() for process in ranks):
        multiprocessing.connection.wait([p.sentinel for p in ranks if p.is_alive()])
        if any(process.exitcode for process in ranks):
            for process in ranks:
                process.terminate()
    return not any(process.exitcode for process in ranks)


if __name__ == "__main__":
    sys.exit(main())
'''
