"""record(plan, q, k, v)   a run of the emitted torch program, its functions wrapped, not rewritten.

A rank runs the program twice: the first time works out who does what, the second one is recorded.
When the log says that a message has arrived, it has: a thread of its own waits for each. What a
rectangle adds to sums is told in one piece after its kernel calls, also where they take turns.
"""

import threading
from collections.abc import Callable, Sequence
from time import perf_counter
from types import ModuleType
from typing import Any

import numpy as np

from planner.errors import PlanError
from planner.ir import Plan
from planner.planning import Pair
from runtimes.arrays import Array
from runtimes.recording.events import KINDS, Event, Kind, Recorded, turns
from runtimes.torch_ranks import Parts, attend, run_parts

Note = tuple[int, int, int, int, float, float]  # backward?, kind, turn, number, start, end
LOCK = threading.Lock()


class Here(threading.local):
    """What the rank of this thread is doing."""

    notes: list[Note] | None = None
    backward = False
    turn = -1
    attended = 0
    unpacked = 0
    merging: float | None = None  # seconds of the rectangle that is attended


HERE = Here()


def record(
    plan: Plan | Pair,
    q: Array,
    k: Array,
    v: Array,
    dout: Array | None = None,
    *,
    vehicle: str = "",
    timeout: float = 300.0,
) -> tuple[Array | tuple[Array, ...], list[Recorded]]:
    """What `runtimes.torch_ranks.run` returns, and what happened, pass by pass.

    Arguments and errors as there; PlanError as well where the program does not do row by row what
    the plan says.
    """
    plans, results, parts = run_parts(plan, q, k, v, dout, vehicle, timeout, recorded_attend)
    tables = [shards[-1] for shards in parts]
    passes = plans if isinstance(plans, tuple) else (plans,)
    return results, [
        (one, _events(one, tables)) for one in passes if one.pass_ == "forward" or dout is not None
    ]


def _events(plan: Plan, tables: list[Array]) -> list[Event]:
    """The notes of all ranks on one pass as events; turns become steps."""
    found, steps = list[Event](), turns(plan)
    for rank, table in enumerate(tables):
        mine = table[table[:, 0] == (plan.pass_ == "backward")]
        if len(mine) and int(mine[:, 2].max()) + 1 != len(steps[rank]):
            raise PlanError(
                f"{plan.name}: rank {rank} took {int(mine[:, 2].max()) + 1} turns,"
                f" but has {len(steps[rank])} steps"
            )
        for _, kind, turn, number, start, end in mine.tolist():
            step = steps[rank][int(turn)]
            found.append(Event(KINDS[int(kind)], rank, step, int(number), start, end))
    return found


def recorded_attend(program: ModuleType, group: Any, arrays: Sequence[Array]) -> Parts:
    """What one rank does, twice; after its results a table of notes on the second time: [n, 6]."""
    instrument(program)
    attend(program, group, arrays)
    group.barrier().wait()
    HERE.notes = notes = list[Note]()
    try:
        parts = attend(program, group, arrays)
    finally:
        HERE.notes = None
    return [*parts, np.array(notes, np.float64).reshape(-1, 6)]


def instrument(program: ModuleType) -> None:
    """Wrap the functions of a program, once, so that they leave notes where somebody asks."""
    with LOCK:
        if not hasattr(program, "instrumented"):
            program.instrumented = True  # type: ignore[attr-defined]
            for name, wrapped in WRAPPED.items():
                setattr(program, name, wrapped(program, getattr(program, name)))
            program.Store.add = _add(program.Store.add)


def _note(kind: Kind, number: int, start: float, end: float) -> None:
    if HERE.notes is not None:
        row = int(HERE.backward), KINDS.index(kind), HERE.turn, number, start, end
        HERE.notes.append(row)


def _follow(program: ModuleType, plain: Callable[..., Any]) -> Callable[..., Any]:
    def follow(steps: Any, store: Any, attend: Any, group: Any, **rest: Any) -> Any:
        HERE.backward = attend is getattr(program, "attend_backward", None)
        HERE.turn = -1
        return plain(steps, store, _attend(attend), group, **rest)

    return follow


def _attend(plain: Callable[..., Any]) -> Callable[..., Any]:
    def attend(*rectangle: Any) -> None:
        began, HERE.merging = perf_counter(), 0.0
        plain(*rectangle)
        end, merged = perf_counter(), HERE.merging
        HERE.merging = None
        _note("attend", HERE.attended, began, end - merged)
        _note("merge", HERE.attended, end - merged, end)
        HERE.attended += 1

    return attend


def _add(plain: Callable[..., Any]) -> Callable[..., Any]:
    def add(*what: Any, **rest: Any) -> None:
        began = perf_counter()
        plain(*what, **rest)
        if HERE.merging is not None:
            HERE.merging += perf_counter() - began

    return add


def _exchange(program: ModuleType, plain: Callable[..., Any]) -> Callable[..., Any]:
    def exchange(sends: list[Any], receives: list[Any], group: Any) -> list[Any]:
        HERE.turn, HERE.attended, HERE.unpacked = HERE.turn + 1, 0, 0
        began = perf_counter()
        works = plain(sends, receives, group)
        _note("turn", 0, began, perf_counter())
        if HERE.notes is None:
            return list(works)
        messages = [message for message, _ in (*sends, *receives)]
        if len(works) != sum(map(len, messages)):
            raise PlanError("cannot record: this backend waits for messages all together")
        kinds: list[tuple[Kind, int]] = [("send", n) for n in range(len(sends))]
        kinds += [("receive", n) for n in range(len(receives))]
        rest = iter(works)
        return [
            _Watched(
                [next(rest) for _ in message],
                (HERE.notes, int(HERE.backward), HERE.turn, *what),
                began,
            )
            for message, what in zip(messages, kinds, strict=True)
        ]

    return exchange


class _Watched:
    """A message under way, its arrays one by one; a thread notes when all are done."""

    def __init__(
        self, works: list[Any], what: tuple[list[Note], int, int, Kind, int], began: float
    ) -> None:
        self.works, self.what, self.began = works, what, began
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self) -> None:
        try:
            for work in self.works:
                work.wait()
        except BaseException as error:
            self.error = error
        notes, backward, turn, kind, number = self.what
        notes.append((backward, KINDS.index(kind), turn, number, self.began, perf_counter()))

    def wait(self) -> None:
        """Until the message is done; raises what waiting for it raised."""
        self.thread.join()
        if self.error is not None:
            raise self.error


def _unpack(program: ModuleType, plain: Callable[..., Any]) -> Callable[..., Any]:
    def unpack(store: Any, tensors: Any, blocks: Any, message: Any) -> None:
        began = perf_counter()
        plain(store, tensors, blocks, message)
        if any(tensor in program.SUMS for tensor in tensors):
            _note("arrive", HERE.unpacked, began, perf_counter())
        HERE.unpacked += 1

    return unpack


WRAPPED = {"follow": _follow, "exchange": _exchange, "unpack": _unpack}
