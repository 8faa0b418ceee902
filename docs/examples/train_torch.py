"""Train a small LLaMA-style model on the bytes of this documentation, with sharded sequences.

    python docs/examples/train_torch.py    on 4 ranks of this machine and on one device
    torchrun --nproc-per-node 4 docs/examples/train_torch.py --sharded    under a launcher

Both runs read the same bytes and start with the same weights. They use the layers of
layer_torch.py; the sharded run uses attention that `ringloom emit torch zigzag` writes. Every rank
holds some tokens, with their positions and targets, and only attention communicates. The losses of
both runs are equal up to rounding.
"""

import argparse
import importlib.util
import multiprocessing
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

import layer_torch
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

ROOT = Path(__file__).resolve().parents[2]
RANKS, SEQ, BATCH, LAYERS = 4, 258, 2, 2
HEADS, KV_HEADS, HEAD_DIM, HIDDEN = 4, 2, 16, 128
BYTES, DTYPE = 256, torch.float64  # float64, so that losses differ only by rounding


def write_program(folder):
    """Writes the emitted attention to a file, as `ringloom emit` does."""
    import ringloom as rl

    work = rl.Workload(
        seq=SEQ,
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        mask=rl.Causal(),
        dtype="float64",
    )
    path = Path(folder, "attention.py")
    path.write_text(rl.emit(rl.plan("zigzag", work, RANKS, pass_="both"), "torch"))
    return path


def load_program(path):
    """Loads the emitted file as a module; in your own project you simply import it."""
    spec = importlib.util.spec_from_file_location("attention", path)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


# ---- data: whole sequences, then the shards of a rank


def documentation():
    """Returns the README and the documentation pages as one tensor of bytes."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    text = b"\n".join(page.read_bytes() for page in pages)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def batch_of(text, step):
    """Returns sequences and their targets [BATCH, SEQ]; targets are shifted before sharding."""
    first = (step * BATCH + torch.arange(BATCH)) * SEQ % (len(text) - SEQ - 1)
    rows = text[first[:, None] + torch.arange(SEQ + 1)]
    return rows[:, :-1], rows[:, 1:]


# ---- model: embedding, layers, head


def init(device):
    """Returns the same random weights on every rank: embedding, layers, norm and head."""
    random = torch.Generator().manual_seed(0)
    width = HEADS * HEAD_DIM
    embedding = torch.randn(BYTES, width, generator=random, dtype=DTYPE).to(device) * 0.1
    head = torch.randn(BYTES, width, generator=random, dtype=DTYPE).to(device) * 0.1
    sizes = width, HIDDEN, HEADS, KV_HEADS, HEAD_DIM
    layers = [layer_torch.init(1 + n, *sizes, DTYPE, device) for n in range(LAYERS)]
    norm = torch.ones(width, dtype=DTYPE, device=device)
    for weight in (embedding, norm, head):
        weight.requires_grad_()
    return {"embedding": embedding, "layers": layers, "norm": norm, "head": head}


def loss_of(model, positions, attend, tokens, targets):
    """Returns the contribution of these tokens to the mean loss of the batch."""
    x = model["embedding"][tokens]
    for params in model["layers"]:
        x = layer_torch.decoder_layer(params, x, positions, attend)
    logits = layer_torch.rms_norm(x, model["norm"]) @ model["head"].T
    loss = cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    return loss / (BATCH * SEQ)


def weights_of(model):
    """Returns all weights as a list."""
    layers = [weight for params in model["layers"] for weight in params.values()]
    return [model["embedding"], model["norm"], model["head"], *layers]


# ---- training


def train(program, steps, group=None, device="cpu"):
    """Returns the loss of every step; with a group, each rank trains on its own tokens."""
    model = init(device)
    weights, text = weights_of(model), documentation()
    optimizer = torch.optim.AdamW(weights, lr=3e-3)
    positions = torch.arange(SEQ)
    attend = partial(scaled_dot_product_attention, is_causal=True, enable_gqa=True)
    if group is not None:
        positions = program.positions(group.rank())
        attend = partial(program.attention, group=group)
    losses = []
    for step in range(steps):
        tokens, targets = (whole[:, positions].to(device) for whole in batch_of(text, step))
        loss = loss_of(model, positions, attend, tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        total = loss.detach()
        if group is not None:  # every rank has only the contribution of its tokens
            for tensor in (total, *(weight.grad for weight in weights)):
                dist.all_reduce(tensor, group=group)
        optimizer.step()
        losses.append(total.item())
    return losses


def run_rank(rank, folder, path, steps):
    """Runs one rank of the sharded run; rank 0 saves the losses to a file."""
    torch.set_num_threads(1)
    init_method = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=RANKS)
    losses = train(load_program(path), steps, dist.group.WORLD)
    if rank == 0:
        torch.save(losses, Path(folder, "losses"))
    dist.destroy_process_group()


def run_both(steps):
    """Returns the losses of the sharded run on local processes and of the run on one device."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    with tempfile.TemporaryDirectory() as folder:
        path = write_program(folder)
        ranks = [
            context.Process(target=run_rank, args=(rank, folder, path, steps), daemon=True)
            for rank in range(RANKS)
        ]
        for process in ranks:
            process.start()
        single = train(load_program(path), steps)
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            raise RuntimeError("a rank failed, see above")
        return torch.load(Path(folder, "losses")), single


def under_torchrun(steps):
    """Returns the losses of the sharded run on ranks that a launcher started."""
    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    with tempfile.TemporaryDirectory() as folder:
        program = load_program(write_program(folder))
    losses = train(program, steps, dist.group.WORLD, device)
    dist.destroy_process_group()
    return losses


def main():
    """Trains, prints the losses, and returns 1 if they differ by more than rounding."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument(
        "--sharded", action="store_true", help="only the sharded run, under torchrun"
    )
    options = parser.parse_args()
    if options.sharded:
        losses = under_torchrun(options.steps)
        if os.environ["RANK"] == "0":
            print(*(f"{loss:.6f}" for loss in losses))
        return 0
    sharded, single = run_both(options.steps)
    for step, (a, b) in enumerate(zip(sharded, single, strict=True)):
        print(
            f"step {step:3}   {RANKS} ranks {a:.12f}   one device {b:.12f}   diff {abs(a - b):.0e}"
        )
    difference = max(abs(a - b) for a, b in zip(sharded, single, strict=True))
    print(f"loss {single[0]:.2f} to {single[-1]:.2f}; the runs differ by at most {difference:.1e}")
    return 0 if difference < 1e-9 else 1


if __name__ == "__main__":
    sys.exit(main())
