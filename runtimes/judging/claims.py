"""Reads the claims of an emitted file from its text, without executing any of it.

Claims only state how to call the file and which attention it should compute. They are not trusted.
"""

import ast
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ringloom.planner.errors import RingloomError
from ringloom.planner.given import require_integer
from ringloom.planner.workload import Workload

TOKENS_PER_RANK = 128  # to judge by if the program supports any length
SIZES = "ranks", "heads", "kv_heads", "head_dim"  # present in every PLAN
FORWARD_ALONE = ("out",)  # RESULTS of a JAX program without a backward pass
LENGTHS = "seq", "kv_seq"  # absent from a PLAN if tables contain them


@dataclass(frozen=True, slots=True)
class Claims:
    """The PLAN and the interface of a file.

    target     the library that the file imports, "torch" or "jax"
    dynamic    True if `attention` takes tables
    backward   True if the file has a backward pass
    checked    the sequence length of the file's own check, 0 if unknown
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
        """Returns the attention, in float64, with which to compare the program.

        `seq`: by default the length of PLAN, or of the program's own check if it has at least about
        64 tokens per rank. `mask`: by default that of PLAN, or causal for a dynamic program. Raises
        RingloomError for an invalid PLAN.
        """
        planned = self.plan.get("seq", TOKENS_PER_RANK * self.ranks)
        lowest = min(planned, TOKENS_PER_RANK * self.ranks) // 2
        default = self.checked if lowest <= self.checked <= planned else planned
        seq = default if seq is None else seq
        mask = mask or str(self.plan.get("mask", "causal"))
        if mask == self.plan.get("mask") and "@" in mask:
            raise RingloomError("the mask in PLAN refers to a file: pass --mask")
        others = ("heads", "kv_heads", "head_dim", "v_head_dim", "scale", "sinks")
        sizes = {name: self.plan[name] for name in others if name in self.plan}
        keys = seq + self.plan.get("kv_seq", planned) - planned
        return Workload(seq=seq, kv_seq=keys, mask=mask, dtype="float64", **sizes)


def parse_claims(text: bytes) -> Claims:
    """Reads the text of a file; raises RingloomError unless it is a program of `ringloom emit`."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError) as error:
        raise RingloomError(f"the file is not valid Python: {error}") from None
    functions = {part.name: part for part in body if isinstance(part, ast.FunctionDef)}
    if not {"attention", "positions"} <= functions.keys():
        raise RingloomError(
            "ringloom did not emit this file: it has no functions attention and positions"
        )
    constants = {name: value for part in body for name, value in _literals(part)}
    if not isinstance(plan := constants.get("PLAN"), dict):
        raise RingloomError("ringloom did not emit this file: it has no PLAN of literals")
    for name in (*SIZES, *(name for name in LENGTHS if name in plan)):
        plan[name] = require_integer(f"PLAN[{name!r}]", plan.get(name, ""), 1)
    return Claims(
        plan,
        "jax" if "jax" in set(_imports(body)) else "torch",
        "tables" in {argument.arg for argument in functions["attention"].args.args},
        "backward" in functions and constants.get("RESULTS") != FORWARD_ALONE,
        checked if isinstance(checked := constants.get("CHECKED"), int) else 0,
    )


def _literals(part: ast.stmt) -> Iterator[tuple[str, Any]]:
    """Yields (name, value) if a statement assigns literals: A = B = 1, or A, B = 1, 2."""
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
