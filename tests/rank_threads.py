"""One thread per rank around an emitted torch program, each with a gloo group of its own."""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from threading import Lock, Thread
from types import ModuleType
from typing import Any

import torch

from runtimes import torch_ranks


def load(source: str) -> ModuleType:
    """An emitted program whose messages go through groups that torch does not know of."""
    program = torch_ranks.load(source)
    program.exchange = torch_ranks.exchange  # type: ignore[attr-defined]
    return program


def in_threads(ranks: int, body: Callable[[Any], Any], seconds: float = 60.0) -> list[Any]:
    """What `body(group)` returns on every rank; the first error of any is raised."""
    store, errors = torch.distributed.HashStore(), list[Exception]()
    results: list[Any] = [None] * ranks

    def run(rank: int) -> None:
        try:
            torch.set_num_threads(1)
            limit = timedelta(seconds=seconds)
            results[rank] = body(torch.distributed.ProcessGroupGloo(store, rank, ranks, limit))
        except Exception as error:
            errors.append(error)

    threads = [Thread(target=run, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) and not errors:
        next(thread for thread in threads if thread.is_alive()).join(0.05)
    if errors:
        raise errors[0]
    return results


class Events(Counter[str]):
    """Counts a program's kernel calls, messages and bytes, over all ranks."""

    def __init__(self, program: ModuleType) -> None:
        super().__init__()
        self.lock = Lock()
        for name in ("kernel", "kernel_backward", "exchange"):
            setattr(program, name, self.watched(name, getattr(program, name)))

    def watched(self, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        """The function, noting each call."""

        def watched(*args: Any) -> Any:
            with self.lock:
                if name == "exchange":
                    self["messages"] += len(args[0])
                    self["bytes"] += sum(x.nbytes for message, _ in args[0] for x in message)
                else:
                    self[name] += 1
            return plain(*args)

        return watched
