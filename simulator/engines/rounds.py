"""The rows of a plan round by round for both engines: what each costs, and what it waits for.

Within a round no rank does two things at once. A round takes, in row order, each row none of whose
ranks an earlier remaining row still waits for; so the rows of every rank keep their order. A
partial permutation is one round as it is.

A rank holds at most one accumulator per (tensor, block). A partial-sum transfer takes it away, an
attend or an arrival adds to it or, where it is absent, begins it: so merging is charged exactly
where two are added. Where accumulators lie does not depend on the clock.

What an all-to-all of heads brings is copied once the last of it is there; packing, too, is charged
then, at the receiver, who gets as much as it gives.

Messages and attends are numbered in plan order. In what a row needs, 0 stands for what the rank
owns or had from the start, and 1 for the first message. Tensors that always travel together share
one table of the messages that brought them.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ringloom.planner.analysis.exchanges import Exchanges
from ringloom.planner.analysis.messages import message_bytes
from ringloom.planner.analysis.tables import Table, attended_blocks, of_inputs
from ringloom.planner.ir import ACCUMULATORS, Attend, Index, Move, Node, Step
from ringloom.planner.partitions import Ints
from ringloom.simulator.costs.prices import Costs
from ringloom.simulator.costs.terms import Event
from ringloom.simulator.timeline import Floats

EVENTS: tuple[Event, ...] = ("add", "merge")
AnyNode = TypeVar("AnyNode", bound=Node)


class Messages(NamedTuple):
    """A round of messages, which have the numbers `rows` among all."""

    node: Move
    rows: slice
    size: NDArray[np.int64]  # bytes
    wire: NDArray[Any]  # bytes that would take as long where senders do not get in each other's way
    needs: list[Ints]  # what its source must have received, by numbers from 1: [rows, w] each
    unpacked: bool  # whether they bring heads in an all-to-all
    merging: Floats  # seconds at its destination, of unpacking, too

    @property
    def joins(self) -> bool:
        """True if the destination has work to do with what comes, in the step in which it does."""
        return self.node.accumulates or self.unpacked


class Calls(NamedTuple):
    """A round of attends; the seconds of their kernel calls, and of adding their results."""

    node: Attend
    rows: slice
    needs: list[Ints]  # as of messages
    seconds: Floats
    adding: Floats


class Rounds:
    """The rounds of each step of a plan; `speed` [ranks] are factors on the ranks' rates."""

    def __init__(self, costs: Costs, speed: Floats) -> None:
        plan, self._costs, self._speed = costs.plan, costs, speed
        self._prices = {event: costs.per_block(event) for event in EVENTS}
        self._present = {tensor: Table(plan, tensor) for tensor in ACCUMULATORS[plan.pass_]}
        self._brought = of_inputs(plan, np.int32)
        self._messages = self._calls = 0

    def __iter__(self) -> Iterator[tuple[list[Messages], list[Calls]]]:
        """Yields each step: all its messages leave before anybody attends, and are merged last."""
        for number, step in enumerate(self._costs.plan.steps):
            exchanges = Exchanges(self._costs.plan, step)
            sent = [
                self._send(number, part, exchanges if is_one else None)
                for move in _moves(step)
                for part, is_one in exchanges.apart(move)
            ]
            calls = [self._attend(node) for node in _attends(step)]
            yield [self._arrive(messages) for messages in sent], calls

    def _send(self, number: int, move: Move, exchanges: Exchanges | None) -> Messages:
        rows = slice(self._messages, self._messages + len(move))
        self._messages = rows.stop
        numbers = np.arange(1 + rows.start, 1 + rows.stop, dtype=np.int32)
        tables = [table for tensor, table in self._brought.items() if tensor in move.tensors]
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
        needs = [t[node.rank, attended_blocks(node, name)] for name, t in self._brought.items()]
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
        """Add to accumulators, or begin absent ones; returns the seconds of each row."""
        seconds = np.zeros(len(rank))
        for tensor, of_rows in blocks.items():
            present, prices = self._present[tensor], self._prices[event][tensor]
            entries = present.of(rank, of_rows)
            seconds += (prices.take(of_rows.T) * present[entries].T).sum(axis=0)
            present[entries] = True
        return seconds / self._speed[rank]


def _attends(step: Step) -> Iterator[Attend]:
    """Yield a step's attends in parts in which every rank has one row."""
    return (part for node in step.attends for part in _in_rounds(node, node.rank))


def _moves(step: Step) -> Iterator[Move]:
    """Yield a step's moves in parts in which every rank sends and receives once at the most."""
    return (part for node in step.moves for part in _in_rounds(node, node.src, node.dst))


def _in_rounds(node: AnyNode, *columns: Ints) -> list[AnyNode]:
    """Cut a node where a rank occurs twice in a column."""
    if all(np.bincount(column).max(initial=0) < 2 for column in columns):
        return [node]
    return [node.only(rows) for rows in rounds(*columns)]


def rounds(*columns: Ints) -> list[Index]:
    """Returns the row numbers of each round; `columns` [n] are the ports that a row occupies.

    A row comes one round after the last earlier row that shares a port with it.
    """
    ports = [[0] * (int(column.max(initial=0)) + 1) for column in columns]  # rounds they were in
    number = list[int]()
    for row in zip(*(column.tolist() for column in columns), strict=True):
        this = max(port[rank] for port, rank in zip(ports, row, strict=True))
        number.append(this)
        for port, rank in zip(ports, row, strict=True):
            port[rank] = this + 1
    order = np.argsort(number, kind="stable")
    return np.split(order, np.cumsum(np.bincount(number))[:-1]) if number else []
