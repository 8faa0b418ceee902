"""Train a small LLaMA-style model on the bytes of this documentation, with sharded sequences.

    python docs/examples/train_jax.py              on 4 virtual CPU devices, and on one device
    python docs/examples/train_jax.py --steps 50

Both runs read the same bytes and start with the same weights. Their layers are those of
layer_jax.py; the sharded run uses attention that `ringloom emit jax zigzag` writes. Every device
holds some tokens, with their positions and targets, and only attention communicates. The losses of
both runs are equal up to rounding.
"""

import argparse
import importlib.util
import sys
import tempfile
from functools import partial
from pathlib import Path

import jax

RANKS = 4
jax.config.update("jax_num_cpu_devices", RANKS)
jax.config.update("jax_enable_x64", True)  # so that losses differ only by rounding

import jax.numpy as jnp
import layer_jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

ROOT = Path(__file__).resolve().parents[2]
SEQ, BATCH, LAYERS = 258, 2, 2
HEADS, KV_HEADS, HEAD_DIM, HIDDEN = 4, 2, 16, 128
BYTES, DTYPE = 256, jnp.float64


def emitted_program():
    """Load the emitted file as a module; in your own project you simply import it."""
    import ringloom as rl

    work = rl.Workload(
        seq=SEQ,
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        mask=rl.Causal(),
        dtype="float64",
    )
    source = rl.emit(rl.plan("zigzag", work, RANKS, pass_="both"), "jax")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "attention.py")
        path.write_text(source)
        spec = importlib.util.spec_from_file_location("attention", path)
        program = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(program)
    return program


# ---- data: whole sequences first, then in layout order


def documentation():
    """Return the README and the documentation pages as one array of bytes."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return np.frombuffer(b"\n".join(page.read_bytes() for page in pages), np.uint8)


def batch_of(text, step):
    """Return sequences and their targets [BATCH, SEQ]; targets are shifted before sharding."""
    first = (step * BATCH + np.arange(BATCH)) * SEQ % (len(text) - SEQ - 1)
    rows = text[first[:, None] + np.arange(SEQ + 1)]
    return rows[:, :-1], rows[:, 1:]


def in_layout(program, whole, sharding):
    """Return tokens or targets [BATCH, SEQ] as a global array in layout order."""
    shards = [program.shard(whole, rank, axis=1) for rank in range(RANKS)]
    return jax.device_put(np.concatenate(shards, axis=1), sharding)


# ---- model: embedding, layers, head


def init():
    """Return random weights: embedding, layers, norm and head."""
    random, width = np.random.default_rng(0), HEADS * HEAD_DIM
    embedding, head = (0.1 * random.standard_normal((2, BYTES, width))).astype(DTYPE)
    sizes = width, HIDDEN, HEADS, KV_HEADS, HEAD_DIM
    parts = [layer_jax.init(1 + n, *sizes, DTYPE) for n in range(LAYERS)]
    layers = jax.tree.map(lambda *weights: np.stack(weights), *parts)
    return {"embedding": embedding, "layers": layers, "norm": np.ones(width, DTYPE), "head": head}


def dense(q, k, v):
    """Compute causal attention by its definition, on one device."""
    k, v = (jnp.repeat(x, HEADS // KV_HEADS, 1) for x in (k, v))
    scores = jnp.einsum("bhid,bhjd->bhij", q, k) * HEAD_DIM**-0.5
    weights = jax.nn.softmax(scores, where=jnp.tri(SEQ, dtype=bool))
    return jnp.einsum("bhij,bhjd->bhid", weights, v)


def loss_of(model, tokens, targets, *, at, attend):
    """Return the mean loss over tokens; padding, at position -1, does not count."""
    x = jnp.asarray(model["embedding"])[tokens]
    layer = partial(layer_jax.decoder_layer, at=at, attend=attend)
    x, _ = jax.lax.scan(lambda x, params: (layer(params, x), None), x, model["layers"])
    logits = layer_jax.rms_norm(x, model["norm"]) @ model["head"].T
    right = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    losses = jax.nn.logsumexp(logits, axis=-1) - right
    return jnp.where(at >= 0, losses, 0).sum() / (BATCH * SEQ)


# ---- training


@jax.jit
def adam(weight, slope, mean, square, step, rate=3e-3, b1=0.9, b2=0.95):
    """Perform one step of Adam on one array."""
    mean, square = b1 * mean + (1 - b1) * slope, b2 * square + (1 - b2) * slope**2
    size = rate * jnp.sqrt(1 - b2**step) / (1 - b1**step)
    return weight - size * mean / (jnp.sqrt(square) + 1e-8), mean, square


def train(program, steps, mesh=None):
    """Return the loss of every step; with a mesh, each device holds its own tokens."""
    text, model = documentation(), init()
    placed, at, attend = np.asarray, np.arange(SEQ), dense
    if mesh is not None:
        sharding = NamedSharding(mesh, PartitionSpec(None, "sp"))
        placed = partial(in_layout, program, sharding=sharding)
        at = np.concatenate([program.positions(rank) for rank in range(RANKS)])
        attend = partial(program.attention, mesh=mesh)
    loss_here = partial(loss_of, at=at, attend=attend)
    loss_and_slopes = jax.jit(jax.value_and_grad(loss_here))
    means = squares = jax.tree.map(np.zeros_like, model)
    losses = []
    for step in range(steps):
        tokens, targets = map(placed, batch_of(text, step))
        loss, slopes = loss_and_slopes(model, tokens, targets)
        step_of = partial(adam, step=step + 1)
        updated = jax.tree.map(step_of, model, slopes, means, squares)
        model, means, squares = jax.tree.transpose(
            jax.tree.structure(model), jax.tree.structure((0, 0, 0)), updated
        )
        losses.append(float(loss))
    return losses


def both_runs(steps):
    """Return the losses of the sharded run, and of one device."""
    program = emitted_program()
    mesh = Mesh(np.array(jax.devices()[:RANKS]), ("sp",))
    return train(program, steps, mesh), train(program, steps)


def main():
    """Train twice and print both curves; exit with 1 if they differ by more than rounding."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--steps", type=int, default=20)
    sharded, single = both_runs(parser.parse_args().steps)
    print(f"step   {RANKS} devices   one device")
    for step, losses in enumerate(zip(sharded, single, strict=True)):
        print(f"{step:4}   {losses[0]:9.6f}   {losses[1]:10.6f}")
    apart = max(abs(a - b) for a, b in zip(sharded, single, strict=True))
    print(f"largest difference {apart:.1e}")
    return 0 if apart <= 1e-9 else 1


if __name__ == "__main__":
    sys.exit(main())
