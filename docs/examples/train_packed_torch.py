"""Train on packed documents that change in every step; plan each batch during the step before.

    python docs/examples/train_packed_torch.py    on 2 ranks of this machine, and on one device

The model, its weights and its bytes are those of train_torch.py. A batch is one row of documents; a
thread plans the next batch while the ranks train. For comparison, one device uses dense attention
with the same documents; the losses of both runs are equal up to rounding.
"""

import argparse
import multiprocessing
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import train_torch
from torch.nn.functional import scaled_dot_product_attention
from train_torch import HEAD_DIM, HEADS, KV_HEADS, SEQ

import ringloom as rl

RANKS = 2
WORK = rl.Workload(
    seq=SEQ, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, mask=rl.Causal(), dtype="float64"
)


def write_program(folder):
    """Emit attention that takes tables in every call."""
    path = Path(folder, "attention.py")
    path.write_text(rl.emit(rl.plan("zigzag", WORK, RANKS, pass_="both"), "torch", dynamic=True))
    return path


# ---- data: documents, their plans, and the bytes in them


def documents_of(step):
    """Return the lengths of the documents of a step, which fill a row."""
    random, lengths = torch.Generator().manual_seed(step), []
    while (left := SEQ - sum(lengths)) > 0:
        lengths.append(min(left, int(torch.randint(1, SEQ // 2, (), generator=random))))
    return lengths


def batches_of(planner, steps):
    """Yield the planned batch of every step; plan the next one while the caller trains."""
    with ThreadPoolExecutor(1) as background:
        coming = background.submit(planner, documents_of(0))
        for step in range(steps):
            batch = coming.result()
            if step + 1 < steps:
                coming = background.submit(planner, documents_of(step + 1))
            yield batch


def row_of(text, step):
    """Return a row of bytes and its targets [1, SEQ]."""
    first = step * SEQ % (len(text) - SEQ - 1)
    row = text[None, first : first + SEQ + 1]
    return row[:, :-1], row[:, 1:]


def places(lengths):
    """Return the document of each token, and its position in the document."""
    sizes = torch.tensor(lengths)
    document = torch.arange(len(lengths)).repeat_interleave(sizes)
    return document, torch.arange(SEQ) - (sizes.cumsum(0) - sizes)[document]


# ---- training


def sharded(program, batch, group):
    """Return the positions of this rank's tokens, and attention within the documents."""
    tables = program.Tables(batch.tables)
    at = program.positions(group.rank(), tables)
    return at, partial(program.attention, tables=tables, group=group)


def dense(lengths):
    """Return all positions, and dense attention within the documents."""
    document, place = places(lengths)
    seen = (document[:, None] == document) & (place[:, None] >= place)
    return torch.arange(SEQ), partial(scaled_dot_product_attention, attn_mask=seen, enable_gqa=True)


def train(steps, program=None, group=None):
    """Return the loss of every step; with a program, each rank trains on its own tokens."""
    model, text = train_torch.init("cpu"), train_torch.documentation()
    weights, losses = train_torch.weights_of(model), []
    optimizer = torch.optim.AdamW(weights, lr=3e-3)
    planner = program and rl.batch_planner(WORK, RANKS, "h100", samples=[documents_of(0)])
    batches = batches_of(planner, steps) if program else map(documents_of, range(steps))
    for step, batch in enumerate(batches):
        at, attend = sharded(program, batch, group) if program else dense(batch)
        _, place = places(documents_of(step))
        tokens, targets = (whole[:, at] for whole in row_of(text, step))
        loss = train_torch.loss_of(model, place[at], attend, tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        total = loss.detach()
        if program:  # every rank has only the share of its tokens
            for share in (total, *(weight.grad for weight in weights)):
                dist.all_reduce(share, group=group)
        optimizer.step()
        losses.append(total.item())
    return losses


def rank_of_two(rank, folder, path, steps):
    """Run one process of the sharded run; rank 0 saves the losses in a file."""
    torch.set_num_threads(1)
    where = f"file://{folder}/meeting-point"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=RANKS)
    losses = train(steps, train_torch.load_program(path), dist.group.WORLD)
    if rank == 0:
        torch.save(losses, Path(folder, "losses"))
    dist.destroy_process_group()


def both_runs(steps):
    """Return the losses of the sharded run on local processes, and of one device."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    with tempfile.TemporaryDirectory() as folder:
        given = folder, write_program(folder), steps
        ranks = [
            context.Process(target=rank_of_two, args=(rank, *given), daemon=True)
            for rank in range(RANKS)
        ]
        for process in ranks:
            process.start()
        alone = train(steps)
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            raise RuntimeError("a rank failed, see above")
        return torch.load(Path(folder, "losses")), alone


def main():
    """Train, print the losses, and exit with 1 if they differ by more than rounding."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    ranks, alone = both_runs(options.steps)
    for step, (a, b) in enumerate(zip(ranks, alone, strict=True)):
        documents = len(documents_of(step))
        print(f"step {step}   {documents} documents   loss {a:.12f}   apart {abs(a - b):.0e}")
    apart = max(abs(a - b) for a, b in zip(ranks, alone, strict=True))
    print(f"{RANKS} ranks and one device are at most {apart:.1e} apart")
    return 0 if apart < 1e-9 else 1


if __name__ == "__main__":
    sys.exit(main())
