"""Messages from rank to rank, a row each, with their steps."""

from typing import NamedTuple

from planner.analysis.messages import message_bytes
from planner.ir import Plan
from planner.partitions import Ints
from ringloom.views.units import numbers, size


class Message(NamedTuple):
    """One message of a step: its tensors and blocks in words, such as KV,DKV 0-3+7."""

    step: int
    src: int
    dst: int
    bytes: int
    tensors: tuple[str, ...]
    blocks: Ints

    @property
    def name(self) -> str:
        """Its tensors, and its blocks with runs shortened."""
        return f"{','.join(self.tensors)} {numbers(self.blocks)}"


def messages(plan: Plan) -> list[Message]:
    """Returns all messages of a plan, in its order."""
    every = list[Message]()
    for number, move in plan.moves():
        ends = move.src.tolist(), move.dst.tolist(), message_bytes(plan, number, move).tolist()
        for src, dst, sent, blocks in zip(*ends, move.blocks, strict=True):
            every.append(Message(number, src, dst, sent, move.tensors, blocks[blocks >= 0]))
    return every


def step_words(messages: list[Message], steps: int) -> list[str]:
    """Describe the messages of each step: "KV: 7 transfers, 3.5 GiB"."""
    of_steps = [list[Message]() for _ in range(steps)]
    for message in messages:
        of_steps[message.step].append(message)
    return [_words(here) for here in of_steps]


def _words(messages: list[Message]) -> str:
    if not messages:
        return "no transfers"
    names = sorted({tensor for message in messages for tensor in message.tensors})
    ways = len({(message.src, message.dst) for message in messages})
    transfers = f"{ways} transfer{'s' * (ways != 1)}"
    return f"{', '.join(names)}: {transfers}, {size(sum(m.bytes for m in messages))}"
