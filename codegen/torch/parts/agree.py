"""Checks, before anything is sent, that all ranks make the same valid call of attention."""

import hashlib
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from ringloom.codegen.torch.parts.operators import OPERATOR, program

RANKS = SEQ = 1
ANY_LENGTH = DYNAMIC = True


# ---- Agreement: before they send anything, ranks check that they all make the same call.

# By group: the number of calls so far, and the last call.
last_calls = WeakKeyDictionary[Any, tuple[int, str]]()


def check_agreement(
    group: Any, q: Tensor, k: Tensor, settings: str, problem: str, seq: int
) -> None:
    """Raise ValueError on all ranks if any call of attention is invalid or differs from the others.

    On CPUs ranks compare every call; on GPUs only the first call and each call that differs from
    the one before. Raises RuntimeError after the group's timeout if some ranks make no call then.
    """
    if not DYNAMIC:
        problem = problem or length_problem(q.shape[2], seq)
    call = f"{q.dtype} on {q.device.type}, batch {q.shape[0]}, heads {q.shape[1]}:{k.shape[1]}"
    if ANY_LENGTH:
        call += f", {RANKS * q.shape[2]} tokens"
    call = problem or f"{call}, {settings}, program {OPERATOR} of code {program}"
    number, last = last_calls.get(group, (0, "none"))
    calls = [call]
    if RANKS > 1 and (q.is_cpu or call != last):
        sent = call if q.is_cpu else f"{call}, as call {number}, after {last}"
        try:
            calls = gather_calls(sent, group) if q.is_cpu else exchange_by_store(sent, group)
        except RuntimeError as error:
            reason = f"rank {group.rank()} waited for all ranks to make the same call: {sent}"
            raise RuntimeError(reason) from error
    if problem or len({*calls}) > 1:
        ranks = {text: [n for n, x in enumerate(calls) if x == text] for text in calls}
        listed = "; ".join(f"on ranks {numbers}: {text}" for text, numbers in ranks.items())
        raise ValueError(problem if len(ranks) == 1 else f"ranks disagree on a call: {listed}")
    last_calls[group] = number + 1, call


def gather_calls(call: str, group: Any) -> list[str]:
    """Return the calls of all ranks; send their texts only if their hashes differ."""
    digest = torch.tensor([int(hashlib.sha256(call.encode()).hexdigest()[:15], 16)], device="cpu")
    hashes, calls = [digest.clone() for _ in range(RANKS)], [call] * RANKS
    dist.all_gather(hashes, digest, group=group)
    if len({*map(int, hashes)}) > 1:
        dist.all_gather_object(calls, call, group=group)
    return calls


def exchange_by_store(call: str, group: Any) -> list[str]:
    """Return the calls of all ranks through the rendezvous store, without using the GPU."""
    store, rank = dist.distributed_c10d._get_process_group_store(group), group.rank()
    number = store.add(f"calls/{rank}", 1)
    store.set(f"call/{number}/{rank}", call)
    store.wait(keys := [f"call/{number}/{n}" for n in range(RANKS)])
    return [store.get(key).decode() for key in keys]


def length_problem(tokens: int, seq: int) -> str:
    """Return why shards of this length do not fit `seq` (-1: not given); "" if they do."""
    if ANY_LENGTH:
        if seq < 0 and tokens == SEQ and RANKS > 1:
            reason = f"a shard has {SEQ} tokens, like the whole sequence as planned"
            total = f"seq={RANKS * SEQ} if that is the total length of all shards"
            return f"{reason}: pass shard(x, rank), or {total}"
        whole = RANKS * tokens
        problem = f"seq is {seq}, but {RANKS} shards of {tokens} tokens have {whole}"
    else:
        whole, problem = SEQ, f"seq is {seq}, but this program is for {SEQ} tokens only"
    return "" if seq in (-1, whole) else problem
