"""Claims of an emitted file about itself, read from its text: nothing of the file is executed.

Its claims say how to call it, and which attention it is judged by; none of them is believed.
"""

import ast
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ringloom.planner.errors import RingloomError
from ringloom.planner.given import whole
from ringloom.planner.workload import Workload

CHECKED = 128  # queries per rank of a judgement where any length goes
SIZES = "ranks", "heads", "kv_heads", "head_dim"  # that every PLAN names
FORWARD_ALONE = ("out",)  # the results that a JAX program without a backward pass names
LENGTHS = "seq", "kv_seq"  # that a PLAN leaves out where tables have them


@dataclass(frozen=True, slots=True)
class Claims:
    """The PLAN of a file, and its form.

    target     the library that it imports, "torch" or "jax"
    dynamic    True: `attention` takes tables
    backward   True: it has a backward pass
    checked    the tokens of its own check, 0 where it does not say
    """

    plan: dict[str, Any]
    target: str
    dynamic: bool
    backward: bool
    checked: int

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return int(self.plan["ranks"])

    def workload(self, seq: int | None, mask: str | None) -> Workload:
        """Returns the attention to judge it by, in float64, of `seq` queries under `mask`.

        Without them, the mask is that of PLAN, causal for a dynamic program, and the length is
        that of PLAN, or the one of the program's own check where that is not far below 128 tokens
        per rank. Raises RingloomError for a PLAN that cannot mean anything.
        """
        planned = self.plan.get("seq", CHECKED * self.ranks)
        few = min(planned, CHECKED * self.ranks)
        usual = self.checked if few // 2 <= self.checked <= planned else planned
        seq = usual if seq is None else seq
        mask = mask or str(self.plan.get("mask", "causal"))
        if mask == self.plan.get("mask") and "@" in mask:
            raise RingloomError("PLAN names a file as its mask: say --mask")
        others = ("heads", "kv_heads", "head_dim", "v_head_dim", "scale", "sinks")
        sizes = {name: self.plan[name] for name in others if name in self.plan}
        keys = seq + self.plan.get("kv_seq", planned) - planned
        return Workload(seq=seq, kv_seq=keys, mask=mask, dtype="float64", **sizes)


def claims(text: bytes) -> Claims:
    """Reads the text of a file; raises RingloomError unless it is a program of `ringloom emit`."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError) as error:
        raise RingloomError(f"it cannot be read as Python: {error}") from None
    functions = {part.name: part for part in body if isinstance(part, ast.FunctionDef)}
    if not {"attention", "positions"} <= functions.keys():
        raise RingloomError("it has no attention and positions: it is no program of ringloom emit")
    constants = {name: value for part in body for name, value in _literals(part)}
    if not isinstance(plan := constants.get("PLAN"), dict):
        raise RingloomError("it has no PLAN of literals: it is no program of ringloom emit")
    for name in (*SIZES, *(name for name in LENGTHS if name in plan)):
        plan[name] = whole(f"PLAN[{name!r}]", plan.get(name, ""), 1)
    return Claims(
        plan,
        "jax" if "jax" in set(_imports(body)) else "torch",
        "tables" in {argument.arg for argument in functions["attention"].args.args},
        "backward" in functions and constants.get("RESULTS") != FORWARD_ALONE,
        checked if isinstance(checked := constants.get("CHECKED"), int) else 0,
    )


def _literals(part: ast.stmt) -> Iterator[tuple[str, Any]]:
    """Yields the names that a statement gives to literals: A = B = 1, or A, B = 1, 2."""
    if not isinstance(part, ast.Assign):
        return
    with suppress(ValueError, TypeError, SyntaxError, MemoryError):
        value = ast.literal_eval(part.value)
        for target in part.targets:
            if isinstance(target, ast.Name):
                yield target.id, value
            elif isinstance(target, ast.Tuple):
                names = [name.id for name in target.elts if isinstance(name, ast.Name)]
                yield from zip(names, value, strict=True)


def _imports(body: Sequence[ast.stmt]) -> Iterator[str]:
    for part in body:
        if isinstance(part, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in part.names)
