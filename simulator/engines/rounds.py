"""The rows of a plan in rounds, for both engines, with their costs and the messages they need.

In a round each rank occurs at most once. A row joins the first round in which its ranks are free
after all their earlier rows, so the rows of every rank keep their order. A partial permutation is
one round.

A rank has at most one accumulator per (tensor, block). A partial-sum transfer removes the
accumulator. An attend or an arrival adds to it, or creates it if it is absent, so merging is
charged only if two sums are added. The places of accumulators do not depend on time.

Heads of an all-to-all are copied when the last of them has arrived. Packing is charged at the same
time, at the receiver, because every rank receives as many bytes as it sends.

Messages and attends are numbered in plan order. In the needs of a row, 0 stands for blocks that the
rank owns or had from the start, and 1 for the first message. Tensors that are always sent together
share one table with the messages that delivered them.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.analysis.exchanges import Exchanges
from ringloom.planner.analysis.messages import message_bytes
from ringloom.planner.analysis.tables import Table, attended_blocks, input_tables
from ringloom.planner.ir import ACCUMULATORS, Attend, Index, Move, Node, Step
from ringloom.planner.partitions import Ints
from ringloom.simulator.costs.prices import Costs
from ringloom.simulator.costs.terms import Event
from ringloom.simulator.timeline import Floats

EVENTS: tuple[Event, ...] = ("add", "merge")
AnyNode = TypeVar("AnyNode", bound=Node)


class Messages(NamedTuple):
    """A round of messages, whose numbers in the plan are `rows`."""

    node: Move
    rows: slice
    size: NDArray[np.int64]  # bytes
    wire: NDArray[Any]  # bytes that take the same time without incast
    needs: list[Ints]  # messages that the source must have received, from 1: [rows, w] each
    unpacked: bool  # True for heads of an all-to-all
    merging: Floats  # seconds of merging or unpacking at the destination

    @property
    def joins(self) -> bool:
        """True if the destination merges or unpacks the messages in the step that sends them."""
        return self.node.accumulates or self.unpacked


class Calls(NamedTuple):
    """A round of attends, with the seconds of kernel calls and of adding their results."""

    node: Attend
    rows: slice
    needs: list[Ints]  # as for messages
    seconds: Floats
    adding: Floats


class Rounds:
    """The rounds of each step of a plan; `speed` [ranks] multiplies the ranks' rates."""

    def __init__(self, costs: Costs, speed: Floats) -> None:
        plan, self._costs, self._speed = costs.plan, costs, speed
        self._prices = {event: costs.per_block(event) for event in EVENTS}
        self._present = {tensor: Table(plan, tensor) for tensor in ACCUMULATORS[plan.pass_]}
        self._delivered = input_tables(plan, np.int32)
        self._messages = self._calls = 0

    def __iter__(self) -> Iterator[tuple[list[Messages], list[Calls]]]:
        """Yields messages and attends of each step; messages are merged after the attends."""
        for number, step in enumerate(self._costs.plan.steps):
            exchanges = Exchanges(self._costs.plan, step)
            sent = [
                self._send(number, part, exchanges if is_exchange else None)
                for move in _moves(step)
                for part, is_exchange in exchanges.split(move)
            ]
            calls = [self._attend(node) for node in _attends(step)]
            yield [self._arrive(messages) for messages in sent], calls

    def _send(self, number: int, move: Move, exchanges: Exchanges | None) -> Messages:
        rows = slice(self._messages, self._messages + len(move))
        self._messages = rows.stop
        numbers = np.arange(1 + rows.start, 1 + rows.stop, dtype=np.int32)
        tables = [table for tensor, table in self._delivered.items() if tensor in move.tensors]
        needs = [table[move.src, move.blocks] for table in tables]
        for table in tables:
            table[move.dst, move.blocks] = numbers[:, None]
        for tensor in move.tensors if move.accumulates else ():
            self._present[tensor][move.src, move.blocks] = False
        size = message_bytes(self._costs.plan, number, move)
        if not exchanges:
            return Messages(move, rows, size, size, needs, False, np.zeros(len(move)))
        copying = exchanges.copied(move, size) * self._costs.copying / self._speed[move.dst]
        return Messages(move, rows, size, size * self._costs.incast(move), needs, True, copying)

    def _attend(self, node: Attend) -> Calls:
        rows = slice(self._calls, self._calls + len(node))
        self._calls = rows.stop
        needs = [t[node.rank, attended_blocks(node, name)] for name, t in self._delivered.items()]
        blocks = {name: attended_blocks(node, name) for name in self._present}
        seconds = self._costs.attend(node) / self._speed[node.rank]
        return Calls(node, rows, needs, seconds, self._join("add", node.rank, blocks))

    def _arrive(self, messages: Messages) -> Messages:
        if not (move := messages.node).accumulates:
            return messages
        blocks = dict.fromkeys(move.tensors, move.blocks)
        joining = self._join("merge", move.dst, blocks)
        return messages._replace(merging=messages.merging + joining)

    def _join(self, event: Event, rank: Ints, blocks: dict[str, Ints]) -> Floats:
        """Adds to accumulators or creates absent ones; returns the seconds of each row."""
        seconds = np.zeros(len(rank))
        for tensor, of_rows in blocks.items():
            present, prices = self._present[tensor], self._prices[event][tensor]
            entries = present.of(rank, of_rows)
            seconds += (prices.take(of_rows.T) * present[entries].T).sum(axis=0)
            present[entries] = True
        return seconds / self._speed[rank]


def _attends(step: Step) -> Iterator[Attend]:
    """Yields a step's attends in parts in which each rank has one row."""
    return (part for node in step.attends for part in _in_rounds(node, node.rank))


def _moves(step: Step) -> Iterator[Move]:
    """Yields a step's moves in parts in which each rank sends and receives at most once."""
    return (part for node in step.moves for part in _in_rounds(node, node.src, node.dst))


def _in_rounds(node: AnyNode, *columns: Ints) -> list[AnyNode]:
    """Splits a node into rounds, in which each rank occurs at most once per column."""
    if all(np.bincount(column).max(initial=0) < 2 for column in columns):
        return [node]
    return [node.select(rows) for rows in rounds(*columns)]


def rounds(*columns: Ints) -> list[Index]:
    """Returns the row numbers of each round; `columns` [n] are the ports that each row occupies.

    A row is one round after the last earlier row with which it shares a port.
    """
    ports = [[0] * (int(column.max(initial=0)) + 1) for column in columns]  # the next free round
    number = list[int]()
    for row in zip(*(column.tolist() for column in columns), strict=True):
        this = max(port[rank] for port, rank in zip(ports, row, strict=True))
        number.append(this)
        for port, rank in zip(ports, row, strict=True):
            port[rank] = this + 1
    order = np.argsort(number, kind="stable")
    return np.split(order, np.cumsum(np.bincount(number))[:-1]) if number else []
