"""Checks, before anything is sent, that all ranks call attention correctly and in the same way."""

import hashlib
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from ringloom.codegen.torch.parts.operators import OPERATOR, program

RANKS = SEQ = 1
ANY_LENGTH = DYNAMIC = True


# ---- Agreement: ranks compare what they call attention with before they send anything.

last_calls = WeakKeyDictionary[
    Any, tuple[int, str]
]()  # by group: calls so far, and the last of them


def agree(group: Any, q: Tensor, k: Tensor, about: str, wrong: str, seq: int) -> None:
    """Raise ValueError on all ranks if any call of attention is wrong or differs from the others.

    On CPUs ranks compare every call; on GPUs only the first and each call that differs from the
    previous one: if that happens on one rank only, RuntimeError follows after the group's timeout.
    """
    if not DYNAMIC:
        wrong = wrong or wrong_length(q.shape[2], seq)
    call = f"{q.dtype} on {q.device.type}, batch {q.shape[0]}, heads {q.shape[1]}:{k.shape[1]}"
    if ANY_LENGTH:
        call += f", {RANKS * q.shape[2]} tokens"
    call = wrong or f"{call}, {about}, program {OPERATOR} of code {program}"
    number, last = last_calls.get(group, (0, "none"))
    calls = [call]
    if RANKS > 1 and (q.is_cpu or call != last):
        told = call if q.is_cpu else f"{call}, as call {number}, after {last}"
        try:
            calls = gather_calls(told, group) if q.is_cpu else calls_by_store(told, group)
        except RuntimeError as error:
            said = f"rank {group.rank()} waited for all ranks to call attention as it does: {told}"
            raise RuntimeError(said) from error
    if wrong or len({*calls}) > 1:
        ranks = {text: [n for n, x in enumerate(calls) if x == text] for text in calls}
        each = "; ".join(f"on ranks {own}: {text}" for text, own in ranks.items())
        raise ValueError(wrong if len(ranks) == 1 else f"ranks disagree on a call: {each}")
    last_calls[group] = number + 1, call


def gather_calls(call: str, group: Any) -> list[str]:
    """Return the calls of all ranks; sends their texts only if their hashes differ."""
    own = torch.tensor([int(hashlib.sha256(call.encode()).hexdigest()[:15], 16)], device="cpu")
    hashes, calls = [own.clone() for _ in range(RANKS)], [call] * RANKS
    dist.all_gather(hashes, own, group=group)
    if len({*map(int, hashes)}) > 1:
        dist.all_gather_object(calls, call, group=group)
    return calls


def calls_by_store(call: str, group: Any) -> list[str]:
    """Return the calls of all ranks through the rendezvous store, without using the GPU."""
    store, rank = dist.distributed_c10d._get_process_group_store(group), group.rank()
    number = store.add(f"calls/{rank}", 1)
    store.set(f"call/{number}/{rank}", call)
    store.wait(keys := [f"call/{number}/{n}" for n in range(RANKS)])
    return [store.get(key).decode() for key in keys]


def wrong_length(tokens: int, seq: int) -> str:
    """Return what is wrong with shards of this length as parts of `seq` (-1: not given), or ""."""
    if ANY_LENGTH:
        if seq < 0 and tokens == SEQ and RANKS > 1:
            said = f"a shard has {SEQ} tokens, as many as the whole sequence"
            own = f"seq={RANKS * SEQ} if that is the total length of all shards"
            return f"{said}: pass shard(x, rank), or {own}"
        whole = RANKS * tokens
        wrong = f"seq is {seq}, but {RANKS} shards of {tokens} tokens have {whole}"
    else:
        whole, wrong = SEQ, f"seq is {seq}, but this program is for {SEQ} tokens only"
    return "" if seq in (-1, whole) else wrong
