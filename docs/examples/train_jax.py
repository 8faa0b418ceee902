"""Train a small LLaMA-style model on the bytes of this documentation, with sharded sequences.

    python docs/examples/train_jax.py              on 4 virtual CPU devices, and on one device
    python docs/examples/train_jax.py --steps 50

Both runs read the same bytes and start with the same weights. They use the layers of
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
    """Loads the emitted file as a module; in your own project you simply import it."""
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


# ---- data: whole sequences, then in layout order


def documentation():
    """Returns the README and the documentation pages as one array of bytes."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return np.frombuffer(b"\n".join(page.read_bytes() for page in pages), np.uint8)


def batch_of(text, step):
    """Returns sequences and their targets [BATCH, SEQ]; targets are shifted before sharding."""
    first = (step * BATCH + np.arange(BATCH)) * SEQ % (len(text) - SEQ - 1)
    rows = text[first[:, None] + np.arange(SEQ + 1)]
    return rows[:, :-1], rows[:, 1:]


def in_layout(program, whole, sharding):
    """Returns tokens or targets [BATCH, SEQ] as a global array in layout order."""
    shards = [program.shard(whole, rank, axis=1) for rank in range(RANKS)]
    return jax.device_put(np.concatenate(shards, axis=1), sharding)


# ---- model: embedding, layers, head


def init():
    """Returns random weights: embedding, layers, norm and head."""
    random, width = np.random.default_rng(0), HEADS * HEAD_DIM
    embedding, head = (0.1 * random.standard_normal((2, BYTES, width))).astype(DTYPE)
    sizes = width, HIDDEN, HEADS, KV_HEADS, HEAD_DIM
    parts = [layer_jax.init(1 + n, *sizes, DTYPE) for n in range(LAYERS)]
    layers = jax.tree.map(lambda *weights: np.stack(weights), *parts)
    return {"embedding": embedding, "layers": layers, "norm": np.ones(width, DTYPE), "head": head}


def dense(q, k, v):
    """Computes dense causal attention on one device."""
    k, v = (jnp.repeat(x, HEADS // KV_HEADS, 1) for x in (k, v))
    scores = jnp.einsum("bhid,bhjd->bhij", q, k) * HEAD_DIM**-0.5
    weights = jax.nn.softmax(scores, where=jnp.tri(SEQ, dtype=bool))
    return jnp.einsum("bhij,bhjd->bhid", weights, v)


def loss_of(model, tokens, targets, *, positions, attend):
    """Returns the mean loss over tokens except padding, which has position -1."""
    x = jnp.asarray(model["embedding"])[tokens]
    layer = partial(layer_jax.decoder_layer, positions=positions, attend=attend)
    x, _ = jax.lax.scan(lambda x, params: (layer(params, x), None), x, model["layers"])
    logits = layer_jax.rms_norm(x, model["norm"]) @ model["head"].T
    correct = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    losses = jax.nn.logsumexp(logits, axis=-1) - correct
    return jnp.where(positions >= 0, losses, 0).sum() / (BATCH * SEQ)


# ---- training


@jax.jit
def adam(weight, gradient, mean, square, step, rate=3e-3, b1=0.9, b2=0.95):
    """Performs one step of Adam on one array."""
    mean, square = b1 * mean + (1 - b1) * gradient, b2 * square + (1 - b2) * gradient**2
    size = rate * jnp.sqrt(1 - b2**step) / (1 - b1**step)
    return weight - size * mean / (jnp.sqrt(square) + 1e-8), mean, square


def train(program, steps, mesh=None):
    """Returns the loss of every step; with a mesh, tokens are sharded over its devices."""
    text, model = documentation(), init()
    place, positions, attend = np.asarray, np.arange(SEQ), dense
    if mesh is not None:
        sharding = NamedSharding(mesh, PartitionSpec(None, "sp"))
        place = partial(in_layout, program, sharding=sharding)
        positions = np.concatenate([program.positions(rank) for rank in range(RANKS)])
        attend = partial(program.attention, mesh=mesh)
    loss_function = partial(loss_of, positions=positions, attend=attend)
    loss_and_gradients = jax.jit(jax.value_and_grad(loss_function))
    means = squares = jax.tree.map(np.zeros_like, model)
    losses = []
    for step in range(steps):
        tokens, targets = map(place, batch_of(text, step))
        loss, gradients = loss_and_gradients(model, tokens, targets)
        update = partial(adam, step=step + 1)
        updated = jax.tree.map(update, model, gradients, means, squares)
        model, means, squares = jax.tree.transpose(
            jax.tree.structure(model), jax.tree.structure((0, 0, 0)), updated
        )
        losses.append(float(loss))
    return losses


def run_both(steps):
    """Returns the losses of the sharded run and of the run on one device."""
    program = emitted_program()
    mesh = Mesh(np.array(jax.devices()[:RANKS]), ("sp",))
    return train(program, steps, mesh), train(program, steps)


def main():
    """Trains twice and prints the losses; returns 1 if they differ by more than rounding."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    sharded, single = run_both(parser.parse_args().steps)
    print(f"step   {RANKS} devices   one device")
    for step, losses in enumerate(zip(sharded, single, strict=True)):
        print(f"{step:4}   {losses[0]:9.6f}   {losses[1]:10.6f}")
    difference = max(abs(a - b) for a, b in zip(sharded, single, strict=True))
    print(f"largest difference {difference:.1e}")
    return 0 if difference <= 1e-9 else 1


if __name__ == "__main__":
    sys.exit(main())
