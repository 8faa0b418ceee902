"""Asks a torch function of local shards, on every rank of a group.

Rank 0 leads: it chooses the questions, and every rank asks its own function. Questions and answers
are sent over a separate gloo group.
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
from ringloom.runtimes.audit.running.asking import (
    Complaints,
    check_result,
    discard,
    has_parameter,
    widen,
)
from ringloom.runtimes.audit.running.traffic import Key, Traffic
from ringloom.runtimes.machine import RankError
from ringloom.runtimes.torch.rank import to_numpy, to_torch

POISON = 1 << 22  # bytes to fill with NaN, in blocks of several sizes down to 64
Note = Callable[[str], None]  # takes a note on the progress of a rank
NAMES = "out", "dq", "dk", "dv"


class Asker:
    """The function of this rank, and the connection to the other ranks.

    Calls `note(text)` when the rank enters and leaves the function. `timeout`: seconds that ranks
    wait for each other.
    """

    def __init__(
        self,
        attend: Callable[..., Any],
        case: Case,
        rank: int,
        group: Any,
        timeout: float,
        note: Note = discard,
    ) -> None:
        self.attend, self.case, self.rank, self.group = attend, case, rank, group
        self.timeout, self.note, self.calls, self.pass_ = timeout, note, 0, "forward"
        self.options = {"group": group} if has_parameter(attend, "group") else {}
        self.agreed = case.ranks == 1  # the forward pass is known to succeed on every rank
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
        self._broadcast(question)
        return self._ask(question)

    def follow(self) -> Any:
        """Answers questions until rank 0 ends, and returns its result; called on other ranks."""
        while isinstance(message := self._broadcast(None), Question | Case):
            if isinstance(message, Case):
                self.case = message
            else:
                self._ask(message)
        return message

    def change(self, case: Case) -> None:
        """Replaces the case by a case with known positions; called on rank 0."""
        self.case = case
        self._broadcast(case)

    def end(self, result: Any) -> None:
        """Sends the result to the other ranks and ends their `follow`."""
        self._broadcast(result)

    def _broadcast(self, message: Any) -> Any:
        if self.control is None:
            return message
        objects = [message]
        dist.broadcast_object_list(objects, src=self.ranks[0], group=self.control)
        return objects[0]

    def _ask(self, question: Question) -> Answer:
        part = self._answer(question)
        parts: list[Any] = [part]
        if self.control is not None:
            if not any(kind == "crash" for _, kind, _ in part.complaints):
                self.note(f"call {self.calls}: waits for the other ranks")
            self._wait_for_ranks()
            parts = [None] * self.case.ranks
            gathered = parts if self.rank == 0 else None
            dist.gather_object(pickle.dumps(part), gathered, dst=self.ranks[0], group=self.control)
            if self.rank:
                return part
            parts = [pickle.loads(pickled) for pickled in parts]
        return join_answers(parts)

    def _any_ends(self, ends: bool) -> bool:
        """Returns True if the call ends after the forward pass on any rank.

        Ranks compare only in the first backward call: a backward pass that other ranks do not begin
        would wait for them.
        """
        if self.agreed:
            return ends
        self.agreed = True
        self._wait_for_ranks()
        answers: list[Any] = [None] * self.case.ranks
        dist.all_gather_object(answers, ends, group=self.control)
        return any(answers)

    def _wait_for_ranks(self) -> None:
        try:
            dist.monitored_barrier(self.control, timedelta(seconds=self.timeout), True)
        except RuntimeError as error:
            raise RankError(f"ranks did not arrive within {self.timeout:g} s: {error}") from error

    def _answer(self, question: Question) -> Answer:
        """Calls the function of this rank once; returns an error as an answer."""
        try:
            return self._call(question)
        except RankError:
            raise
        except (Exception, SystemExit) as error:
            text = f"{type(error).__name__}: {error}".splitlines()[0][:400]
            frame = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{text}, at line {frame.lineno} of {Path(frame.filename).name}"
            text = f"{text}, {FORMS[question.form]}" if question.form else text
            self.note(f"call {self.calls}: in the function, {self.pass_}: raised {text}")
            if question.dout is not None:
                self._any_ends(True)
            crash = (self.rank, "crash", f"rank {self.rank} raised {text}")
            return Answer(np.zeros(0), complaints=(crash,), backward=self.pass_ == "backward")

    def _call(self, question: Question) -> Answer:
        arrays = inputs(self.case, question, self.rank)
        tensors = {name: to_torch(x).to(self.device) for name, x in arrays.items()}
        if question.form:
            tensors = {name: with_strides(x, name, question.form) for name, x in tensors.items()}
        copies = {name: x.clone() for name, x in tensors.items()} if question.watch else {}
        originals = dict(tensors)
        dout = tensors.pop("dout", None)
        if question.poison:
            poison(self.device, list(tensors.values()))
        self.calls, self.pass_ = self.calls + 1, "forward"
        self.note(f"call {self.calls}: in the function, forward")
        leaves = [x.requires_grad_(dout is not None) for x in tensors.values()]
        traffic = Traffic() if question.watch else None
        with traffic or nullcontext():
            result = self.attend(*leaves, **self.options)
            if (out := _first_tensor(result)) is None:
                out = torch.zeros(0)
                returned = "None" if result is None else f"a {type(result).__name__}"
                text = f"rank {self.rank} returned {returned} instead of a tensor"
                complaints: Complaints = ((self.rank, "wrong shape", text),)
            else:
                dtype = str(out.dtype).removeprefix("torch.")
                complaints = check_result(out, leaves[0], leaves[2], self.rank, dtype)
            ends = any(kind == "wrong shape" for _, kind, _ in complaints)
            if dout is not None:
                self.note(f"call {self.calls}: waits for the other ranks")
                ends = self._any_ends(ends)
            results: dict[str, Any] = {}
            if question.between:
                complaints = *complaints, *self._call(question.between).complaints
            if dout is not None and not ends:
                self.pass_ = "backward"
                self.note(f"call {self.calls}: in the function, backward")
                if traffic:
                    traffic.pass_ = "backward"
                results = self._gradients(out, leaves, dout)
        if changed := [name for name, x in copies.items() if not torch.equal(x, originals[name])]:
            text = f"rank {self.rank} changes {', '.join(changed)}, which the caller may still need"
            complaints = *complaints, (self.rank, "inputs changed", text)
        bytes_sent: dict[Key, int] | None = None
        if traffic and dist.is_initialized():
            bytes_sent = traffic.bytes_from(self.rank, self.ranks)
            if outsiders := traffic.outsiders(self.ranks):
                text = f"rank {self.rank} sends to global rank {outsiders[0]}, which is not audited"
                complaints = *complaints, (self.rank, "too many ranks", text)
        return Answer(_to_wide(out), **results, complaints=complaints, traffic=bytes_sent)

    def _gradients(self, out: Any, leaves: list[Any], dout: Any) -> dict[str, Array]:
        """Returns the gradients of this rank's inputs, with zeros for absent gradients."""
        grads: Any = (None, None, None)
        if out.requires_grad:
            grads = torch.autograd.grad(out, leaves, dout.to(out.dtype), allow_unused=True)
        return {
            f"d{name}": _to_wide(torch.zeros_like(x) if grad is None else grad)
            for name, x, grad in zip("qkv", leaves, grads, strict=True)
        }


def join_answers(parts: list[Answer]) -> Answer:
    """Joins the answers of all ranks along slots."""
    complaints = tuple(complaint for part in parts for complaint in part.complaints)
    if any(kind in ("wrong shape", "crash") for _, kind, _ in complaints):
        backward = any(part.backward for part in parts)
        return Answer(np.zeros(0), complaints=complaints, backward=backward)
    names = [name for name in NAMES if getattr(parts[0], name) is not None]
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(p, name) for p in parts], axis=2) for name in names
    }
    tables = [part.traffic for part in parts if part.traffic is not None]
    traffic = {key: size for table in tables for key, size in table.items()} if tables else None
    return Answer(**arrays, complaints=complaints, traffic=traffic)


def with_strides(tensor: Any, name: str, form: str) -> Any:
    """Returns a tensor with equal values and other strides, see `FORMS`."""
    if form == "transposed":
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    if name != "dout" or not tensor.numel() or not (tensor == (first := tensor.flatten()[0])).all():
        return tensor
    return first.clone().expand(tensor.shape)


def poison(device: Any, tensors: list[Any]) -> None:
    """Fills memory with NaN and frees it, so that later buffers may contain NaN.

    Uses blocks of many sizes, and blocks of the sizes of `tensors` in their dtype and in float32.
    """
    nan = float("nan")
    kinds = [(x, dtype) for x in tensors for dtype in (x.dtype, torch.float32)] * 4
    blocks = [torch.full_like(x, nan, dtype=dtype) for x, dtype in kinds]
    size = POISON
    while size >= 64:
        blocks += [torch.full((size // 4,), nan, device=device) for _ in range(4)]
        size //= 2
    del blocks


def _first_tensor(result: Any) -> Any:
    """Returns out from a tensor, an array or a tuple such as (out, lse, ...); otherwise None."""
    if isinstance(result, tuple | list) and result:
        result = result[0]
    if isinstance(result, torch.Tensor):
        return result
    return to_torch(np.asarray(result)) if hasattr(result, "__array__") else None


def _to_wide(tensor: Any) -> Array:
    return widen(to_numpy(tensor))


def _ranks(case: Case, group: Any) -> list[int]:
    """Returns the global ranks of a group; raises RingloomError if their number is wrong.

    A single rank of a larger world may be audited alone.
    """
    if not dist.is_initialized():
        ranks = [0]
    elif case.ranks == 1 and group is None:
        ranks = [dist.get_rank()]
    else:
        ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    if len(ranks) != case.ranks:
        raise RingloomError(f"the group has {len(ranks)} ranks, but the case has {case.ranks}")
    return ranks


def _device(group: Any) -> Any:
    """Returns the device of this rank's tensors: a GPU if the group uses NCCL, or the CPU."""
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
