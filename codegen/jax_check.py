"""jax_check   the text of a JAX program's self-check: dense attention, devices, exit code."""

DENSE = '''
def dense(q, k, v, dout, rows, offset):
    """Output of some query rows of one head by the definition, and their shares in the gradients;
    q, dout: [rows, head_dim], k, v: [keys, head_dim]."""
    scores = np.where(allowed(rows, len(k), offset), q @ k.T * SCALE, -np.inf)
    top = np.maximum(scores.max(axis=-1, keepdims=True), -1e300)
    weights = np.exp(scores - top)
    weights /= np.maximum(weights.sum(axis=-1, keepdims=True), 1e-300)
    out = weights @ v
    slope = weights * (dout @ v.T - (out * dout).sum(axis=-1, keepdims=True)) * SCALE
    return out, slope @ k, slope.T @ q, weights.T @ dout


def allowed(rows, kv_seq, offset):
    """Which keys the query rows may see, by the definition of the mask."""
    i, j = rows[:, None] + offset, np.arange(kv_seq)
    seen = np.zeros((len(rows), kv_seq), bool)
    for i0, i1, j0, j1, low, high in MASK.astype(np.int64):
        box = (i0 <= i) & (i < i1) & (j0 <= j) & (j < j1)
        seen |= box & (low <= j - i) & (j - i <= high)
    return seen


def dense_parts(q, k, v, dout, rows):
    """Dense attention in float64, a few rows at a time: out and dq of these rows, dk, dv."""
    offset = k.shape[1] - q.shape[1]
    found = [np.zeros(x.shape) for x in (q, q, k, v)]
    for head, n in np.ndindex(HEADS, -(-len(rows) // 512)):
        some, kv = rows[512 * n : 512 * (n + 1)], head // (HEADS // KV_HEADS)
        what = q[head, some], k[kv], v[kv], dout[head, some]
        o, dq, dk, dv = dense(*what, some, offset)
        found[0][head, some], found[1][head, some] = o, dq
        found[2][kv] += dk
        found[3][kv] += dv
    return found
'''

CHECK = '''
def check(mesh, seq, kv_seq, dtype):
    """Compare output and gradients on random inputs with dense attention in float64.

    Above 16k tokens only sampled rows get a gradient and are compared. Returns name, error and
    limit of each result, as the shards of this process see them.
    """
    random = np.random.default_rng(0)
    shapes = [(HEADS, seq, HEAD_DIM), *[(KV_HEADS, kv_seq, HEAD_DIM)] * 2]
    q, k, v, dout = (
        np.asarray(jnp.asarray(random.standard_normal(shape), dtype)).astype(np.float64)
        for shape in (*shapes, shapes[0])
    )
    rows = np.arange(0, seq, max(1, seq // 16384 and seq // 256))
    dout[:, np.setdiff1d(np.arange(seq), rows)] = 0
    where = Where(mesh, mesh.axis_names[0], None, None)
    run = partial(attention_of_length, where=where, seq=seq, kv_seq=kv_seq)
    q_at = np.array([positions(rank, seq) for rank in range(P)])
    kv_at = np.array([kv_positions(rank, kv_seq) for rank in range(P)])
    pairs = (q, q_at), (k, kv_at), (v, kv_at), (dout, q_at)
    inputs = [scattered(x, at, mesh, dtype) for x, at in pairs]
{run}
    truth = dense_parts(q, k, v, dout, rows)
    limits = {{"float64": (1e-12, 1e-11), "float32": (5e-6, 2e-5)}}.get(dtype)
    verdicts = []
    for name, x, exact in zip(("out", "dq", "dk", "dv"), found, truth):
        at = q_at if name in ("out", "dq") else kv_at
        some = np.isin(at, rows) if at is q_at else at >= 0
        error = max(difference(s, exact, at, some) for s in x.addressable_shards)
        rounded = np.asarray(jnp.asarray(exact, dtype)).astype(np.float64)
        own = float(np.abs(rounded - exact).max())
        verdicts.append((name, error, limits[name != "out"] if limits else 2 * own))
    return verdicts


def scattered(x, at, mesh, dtype):
    """A whole array [heads, tokens, head_dim] as a global one [1, ...] in layout order."""
    order = np.concatenate(at)
    whole = np.where((order >= 0)[:, None], x[:, np.maximum(order, 0)], 0.0)[None]
    sharding = jax.NamedSharding(mesh, Spec(None, None, mesh.axis_names[0]))
    return jax.make_array_from_callback(
        whole.shape, sharding, lambda index: jnp.asarray(whole[index], dtype)
    )


def difference(shard, exact, at, some):
    """The largest error of one shard in the rows that are compared; inf for NaN."""
    rank = (shard.index[2].start or 0) // at.shape[1]
    mine = np.asarray(shard.data)[0].astype(np.float64)[:, some[rank]]
    error = np.abs(mine - exact[:, at[rank][some[rank]]]).max(initial=0.0)
    return float(np.nan_to_num(error, nan=np.inf))
'''

GRADS = """    out, pull_back = jax.vjp(run, *inputs[:3])
    found = [out, *pull_back(inputs[3])]"""

NO_GRADS = """    found = [jax.jit(run)(*inputs[:3])]"""

MAIN = '''
def main():
    """Check this file against dense attention, on real devices or on virtual ones of a CPU."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seq", type=int, default={default}, help="queries")
    parser.add_argument(
        "--dtype",
        choices=["float64", "float32", "bfloat16", "float16"],
        help="default: float64, on accelerators the plan's",
    )
    parser.add_argument("--coordinator", help="HOST:PORT, where several processes meet")
    parser.add_argument("--processes", type=int, default=1, help="how many there are")
    parser.add_argument("--process", type=int, default=0, help="the number of this one")
    options = parser.parse_args()
    if options.seq < 1{fixed}:
        parser.error({complaint})
    jax.config.update("jax_num_cpu_devices", max(1, P // options.processes))
    if options.processes > 1:
        what = options.coordinator, options.processes, options.process
        jax.distributed.initialize(*what)
    devices = jax.devices() if len(jax.devices()) >= P else jax.devices("cpu")
    cpu = devices[0].platform == "cpu"
    dtype = options.dtype or ("float64" if cpu else PLAN["dtype"])
    jax.config.update("jax_enable_x64", dtype == "float64")
    kv_seq = max(1, round(options.seq * KV_SEQ / SEQ))
    verdicts = check(Mesh(np.array(devices[:P]), ("sp",)), options.seq, kv_seq, dtype)
    for name, error, limit in verdicts:
        print(f"{{name:3}} error {{error:.1e}}, at most {{limit:.1e}}")
    good = all(error <= limit for _, error, limit in verdicts)
    print("exact" if good else "WRONG", f"at {{options.seq}} queries and {{kv_seq}} keys")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
'''
