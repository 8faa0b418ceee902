"""Train on packed documents that change in every step, planning the next batch during each step.

    python docs/examples/train_packed_torch.py    on 2 ranks of this machine and on one device

The model, weights and training text are those of train_torch.py. A batch is one row of documents; a
thread plans the next batch while the ranks train. For comparison, one device trains on the same
documents with dense attention. The losses of both runs are equal up to rounding.
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
    """Writes emitted attention that takes mask tables in every call."""
    path = Path(folder, "attention.py")
    path.write_text(rl.emit(rl.plan("zigzag", WORK, RANKS, pass_="both"), "torch", dynamic=True))
    return path


# ---- data: documents, their plans and their bytes


def documents_of(step):
    """Returns the lengths of the documents that fill the row of a step."""
    random, lengths = torch.Generator().manual_seed(step), []
    while (remaining := SEQ - sum(lengths)) > 0:
        lengths.append(min(remaining, int(torch.randint(1, SEQ // 2, (), generator=random))))
    return lengths


def batches_of(planner, steps):
    """Yields the planned batch of every step; plans the next batch while the caller trains."""
    with ThreadPoolExecutor(1) as background:
        next_batch = background.submit(planner, documents_of(0))
        for step in range(steps):
            batch = next_batch.result()
            if step + 1 < steps:
                next_batch = background.submit(planner, documents_of(step + 1))
            yield batch


def row_of(text, step):
    """Returns a row of bytes and its targets [1, SEQ]."""
    first = step * SEQ % (len(text) - SEQ - 1)
    row = text[None, first : first + SEQ + 1]
    return row[:, :-1], row[:, 1:]


def document_offsets(lengths):
    """Returns the document of each token and its position in the document."""
    sizes = torch.tensor(lengths)
    document = torch.arange(len(lengths)).repeat_interleave(sizes)
    return document, torch.arange(SEQ) - (sizes.cumsum(0) - sizes)[document]


# ---- training


def sharded_attention(program, batch, group):
    """Returns the positions of this rank's tokens and attention within documents."""
    tables = program.Tables(batch.tables)
    positions = program.positions(group.rank(), tables)
    return positions, partial(program.attention, tables=tables, group=group)


def dense_attention(lengths):
    """Returns all positions and dense attention within documents."""
    document, offset = document_offsets(lengths)
    allowed = (document[:, None] == document) & (offset[:, None] >= offset)
    return torch.arange(SEQ), partial(
        scaled_dot_product_attention, attn_mask=allowed, enable_gqa=True
    )


def train(steps, program=None, group=None):
    """Returns the loss of every step; with a program, each rank trains on its own tokens."""
    model, text = train_torch.init("cpu"), train_torch.documentation()
    weights, losses = train_torch.weights_of(model), []
    optimizer = torch.optim.AdamW(weights, lr=3e-3)
    planner = program and rl.batch_planner(WORK, RANKS, "h100", samples=[documents_of(0)])
    batches = batches_of(planner, steps) if program else map(documents_of, range(steps))
    for step, batch in enumerate(batches):
        positions, attend = (
            sharded_attention(program, batch, group) if program else dense_attention(batch)
        )
        _, offsets = document_offsets(documents_of(step))
        tokens, targets = (whole[:, positions] for whole in row_of(text, step))
        loss = train_torch.loss_of(model, offsets[positions], attend, tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        total = loss.detach()
        if program:  # every rank has only the contribution of its tokens
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
    losses = train(steps, train_torch.load_program(path), dist.group.WORLD)
    if rank == 0:
        torch.save(losses, Path(folder, "losses"))
    dist.destroy_process_group()


def run_both(steps):
    """Returns the losses of the sharded run on local processes and of the run on one device."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    with tempfile.TemporaryDirectory() as folder:
        arguments = folder, write_program(folder), steps
        processes = [
            context.Process(target=run_rank, args=(rank, *arguments), daemon=True)
            for rank in range(RANKS)
        ]
        for process in processes:
            process.start()
        single = train(steps)
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise RuntimeError("a rank failed, see above")
        return torch.load(Path(folder, "losses")), single


def main():
    """Trains, prints the losses, and returns 1 if they differ by more than rounding."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    sharded_losses, single = run_both(options.steps)
    for step, (a, b) in enumerate(zip(sharded_losses, single, strict=True)):
        documents = len(documents_of(step))
        print(f"step {step}   {documents} documents   loss {a:.12f}   diff {abs(a - b):.0e}")
    difference = max(abs(a - b) for a, b in zip(sharded_losses, single, strict=True))
    print(f"losses on {RANKS} ranks and on one device differ by at most {difference:.1e}")
    return 0 if difference < 1e-9 else 1


if __name__ == "__main__":
    sys.exit(main())
