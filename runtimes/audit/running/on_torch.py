"""Asks a torch function of local shards, on every rank of a group.

Rank 0 leads: it decides what to ask, and every rank asks its own function. Questions and answers
travel over a separate gloo group, apart from the function's messages.
"""

import pickle
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ringloom.planner.errors import RingloomError
from ringloom.runtimes.arrays import Array
from ringloom.runtimes.audit.case import Case
from ringloom.runtimes.audit.probes.questions import FORMS, Answer, Question, inputs
from ringloom.runtimes.audit.running.asking import Said, misfits, nothing, takes, untensor
from ringloom.runtimes.audit.running.traffic import Key, Traffic
from ringloom.runtimes.machine import RankError
from ringloom.runtimes.torch.rank import to_numpy, to_torch

POISON = 1 << 22  # bytes to fill with NaN, in blocks of several sizes down to 64
Note = Callable[[str], None]  # takes a note on where a rank is
NAMES = "out", "dq", "dk", "dv"


class Asker:
    """The rank's own function, and the connection to the other ranks.

    Calls `note(text)` when a rank enters and leaves its function. `timeout`: seconds that ranks
    wait for each other.
    """

    def __init__(
        self,
        attend: Callable[..., Any],
        case: Case,
        rank: int,
        group: Any,
        timeout: float,
        note: Note = nothing,
    ) -> None:
        self.attend, self.case, self.rank, self.group = attend, case, rank, group
        self.timeout, self.note, self.calls, self.pass_ = timeout, note, 0, "forward"
        self.given = {"group": group} if takes(attend, "group") else {}
        self.agreed = case.ranks == 1  # ranks know that the forward pass succeeds on every rank
        self.device = _device(group)
        self.control: Any = None
        self.ranks = _ranks(case, group)
        if case.ranks > 1:
            wait = timedelta(seconds=timeout)
            self.control = dist.new_group(
                self.ranks, backend="gloo", timeout=wait, use_local_synchronization=True
            )

    def ask(self, question: Question) -> Answer:
        """Asks every rank; called on rank 0."""
        self._tell(question)
        return self._ask(question)

    def follow(self) -> Any:
        """Answers until the leader ends; returns its result. Called on other ranks."""
        while isinstance(told := self._tell(None), Question | Case):
            if isinstance(told, Case):
                self.case = told
            else:
                self._ask(told)
        return told

    def change(self, case: Case) -> None:
        """Replaces the case by one with known positions; called on rank 0."""
        self.case = case
        self._tell(case)

    def end(self, result: Any) -> None:
        """Sends the result to the other ranks and ends their `follow`."""
        self._tell(result)

    def _tell(self, told: Any) -> Any:
        if self.control is None:
            return told
        box = [told]
        dist.broadcast_object_list(box, src=self.ranks[0], group=self.control)
        return box[0]

    def _ask(self, question: Question) -> Answer:
        part = self._answer(question)
        parts: list[Any] = [part]
        if self.control is not None:
            if not any(kind == "crash" for _, kind, _ in part.said):
                self.note(f"call {self.calls}: waits for the other ranks")
            self._meet()
            parts = [None] * self.case.ranks
            box = parts if self.rank == 0 else None
            dist.gather_object(pickle.dumps(part), box, dst=self.ranks[0], group=self.control)
            if self.rank:
                return part
            parts = [pickle.loads(one) for one in parts]
        return joined(parts)

    def _one_ends(self, ends: bool) -> bool:
        """Returns True if the forward pass ends the call, on any rank in the first backward call.

        A backward pass that other ranks do not begin would wait for them.
        """
        if self.agreed:
            return ends
        self.agreed = True
        self._meet()
        answers: list[Any] = [None] * self.case.ranks
        dist.all_gather_object(answers, ends, group=self.control)
        return any(answers)

    def _meet(self) -> None:
        try:
            dist.monitored_barrier(self.control, timedelta(seconds=self.timeout), True)
        except RuntimeError as error:
            raise RankError(f"ranks did not arrive within {self.timeout:g} s: {error}") from error

    def _answer(self, question: Question) -> Answer:
        """Calls the rank's own function once; an error is an answer, too."""
        try:
            return self._called(question)
        except RankError:
            raise
        except (Exception, SystemExit) as error:
            text = f"{type(error).__name__}: {error}".splitlines()[0][:400]
            where = traceback.extract_tb(error.__traceback__)[-1]
            said = f"{text}, at line {where.lineno} of {Path(where.filename).name}"
            said = f"{said}, {FORMS[question.form]}" if question.form else said
            self.note(f"call {self.calls}: in the function, {self.pass_}: raised {said}")
            if question.dout is not None:
                self._one_ends(True)
            crash = (self.rank, "crash", f"rank {self.rank} raised {said}")
            return Answer(np.zeros(0), said=(crash,), backward=self.pass_ == "backward")

    def _called(self, question: Question) -> Answer:
        arrays = inputs(self.case, question, self.rank)
        tensors = {name: to_torch(x).to(self.device) for name, x in arrays.items()}
        if question.form:
            tensors = {name: formed(x, name, question.form) for name, x in tensors.items()}
        kept = {name: x.clone() for name, x in tensors.items()} if question.watch else {}
        given = dict(tensors)
        dout = tensors.pop("dout", None)
        if question.poison:
            poison(self.device, list(tensors.values()))
        self.calls, self.pass_ = self.calls + 1, "forward"
        self.note(f"call {self.calls}: in the function, forward")
        leaves = [x.requires_grad_(dout is not None) for x in tensors.values()]
        traffic = Traffic() if question.watch else None
        with traffic or nullcontext():
            result = self.attend(*leaves, **self.given)
            if (out := _tensor(result)) is None:
                out = torch.zeros(0)
                text = f"rank {self.rank} returned {untensor(result)} in place of a tensor"
                said: Said = ((self.rank, "wrong shape", text),)
            else:
                said = misfits(out, leaves[0], leaves[2], self.rank, str(out.dtype)[6:])
            ends = any(kind == "wrong shape" for _, kind, _ in said)
            if dout is not None:
                self.note(f"call {self.calls}: waits for the other ranks")
                ends = self._one_ends(ends)
            results: dict[str, Any] = {}
            if question.between:
                said = *said, *self._called(question.between).said
            if dout is not None and not ends:
                self.pass_ = "backward"
                self.note(f"call {self.calls}: in the function, backward")
                if traffic:
                    traffic.pass_ = "backward"
                results = self._gradients(out, leaves, dout)
        if wrong := [name for name, x in kept.items() if not torch.equal(x, given[name])]:
            text = f"rank {self.rank} changes {', '.join(wrong)}, which the caller may still need"
            said = *said, (self.rank, "inputs changed", text)
        sent: dict[Key, int] | None = None
        if traffic and dist.is_initialized():
            sent = traffic.bytes_from(self.rank, self.ranks)
            if others := traffic.strangers(self.ranks):
                text = f"rank {self.rank} sends to rank {others[0]} of the world, not of the audit"
                said = *said, (self.rank, "too many ranks", text)
        return Answer(_wide(out), **results, said=said, traffic=sent)

    def _gradients(self, out: Any, leaves: list[Any], dout: Any) -> dict[str, Array]:
        """Returns the gradients of this rank's inputs, zeros for inputs without one."""
        if not out.requires_grad:
            return {
                f"d{name}": _wide(torch.zeros_like(x))
                for name, x in zip("qkv", leaves, strict=True)
            }
        grads = torch.autograd.grad(out, leaves, dout.to(out.dtype), allow_unused=True)
        return {
            f"d{name}": _wide(torch.zeros_like(x) if grad is None else grad)
            for name, x, grad in zip("qkv", leaves, grads, strict=True)
        }


def joined(parts: list[Answer]) -> Answer:
    """Joins the answers of all ranks along slots."""
    said = tuple(one for part in parts for one in part.said)
    if any(kind in ("wrong shape", "crash") for _, kind, _ in said):
        return Answer(np.zeros(0), said=said, backward=any(part.backward for part in parts))
    names = [name for name in NAMES if getattr(parts[0], name) is not None]
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(p, name) for p in parts], axis=2) for name in names
    }
    tables = [part.traffic for part in parts if part.traffic is not None]
    traffic = {key: size for table in tables for key, size in table.items()} if tables else None
    return Answer(**arrays, said=said, traffic=traffic)


def formed(tensor: Any, name: str, form: str) -> Any:
    """Returns equal values with other strides, see `FORMS`."""
    if form == "transposed":
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    if name != "dout" or not tensor.numel() or not (tensor == (one := tensor.flatten()[0])).all():
        return tensor
    return one.clone().expand(tensor.shape)


def poison(device: Any, like: list[Any]) -> None:
    """Fills memory with NaN and frees it, so that later buffers may contain NaN.

    Blocks have many sizes, and those of the given tensors, in their dtype and in float32.
    """
    nan = float("nan")
    kinds = [(x, dtype) for x in like for dtype in (x.dtype, torch.float32)] * 4
    blocks = [torch.full_like(x, nan, dtype=dtype) for x, dtype in kinds]
    size = POISON
    while size >= 64:
        blocks += [torch.full((size // 4,), nan, device=device) for _ in range(4)]
        size //= 2
    del blocks


def _tensor(result: Any) -> Any:
    """Returns out from a result such as (out, lse, ...) or an array; None for anything else."""
    if isinstance(result, tuple | list) and result:
        result = result[0]
    if isinstance(result, torch.Tensor):
        return result
    return to_torch(np.asarray(result)) if hasattr(result, "__array__") else None


def _wide(tensor: Any) -> Array:
    array = to_numpy(tensor)
    return array if array.dtype == np.float64 else array.astype(np.float32)


def _ranks(case: Case, group: Any) -> list[int]:
    """Returns the global ranks of a group; raises RingloomError if their number is not the case's.

    A single rank of a larger world may be audited alone.
    """
    if not dist.is_initialized():
        ranks = [0]
    elif case.ranks == 1 and group is None:
        ranks = [dist.get_rank()]
    else:
        ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    if len(ranks) != case.ranks:
        raise RingloomError(f"the group has {len(ranks)} ranks, not the {case.ranks} of the case")
    return ranks


def _device(group: Any) -> Any:
    """Returns the device of this rank's tensors: a GPU where the group exchanges on one."""
    if dist.is_initialized() and "nccl" in dist.get_backend(group):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def lead(asker: Asker, examine: Callable[[Asker], Any]) -> Any:
    """Runs `examine(asker)` on rank 0; returns its result on every rank."""
    if asker.rank:
        return asker.follow()
    result = examine(asker)
    asker.end(result)
    return result
