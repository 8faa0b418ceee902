"""variables(loops, walked, frames, keep)   names of what a pass holds, and of what is under way."""

from collections.abc import Sequence

from codegen.lowered.variables import Value, input_spans, named, sum_spans
from codegen.lowered.walk import Cell, Walk
from codegen.text import numbered
from codegen.torch.frames import Frame
from planner.loops.form import OWN, Exchange, Loops, Part, Return, Send, Start, inside

INPUT = {"q": "queries", "kv": "kv"}
SUMS = {"OUT": "results", "DQ": "dq", "DKV": "dkv"}
Moving = Send | Exchange | Return
CARRIED = {"Q": "queries", "DOUT": "dout", "KV": "kv"} | SUMS


Variables = tuple[dict[Value, str], dict[Cell, str], dict[Moving, str]]


def variables(loops: Loops, walked: Walk, frames: Sequence[Frame], keep: bool) -> Variables:
    """Names of inputs, sums and messages of a pass; inputs that a rank owns are named by tensors.

    `keep`: what exchanges bring is read again by the backward pass.
    """
    spans = input_spans(loops)
    exchanges = loops.exchanges.values()
    for side in ("q", "kv"):  # what is owned may be read once more beside a value of its name
        own = spans.pop((side, OWN), None)
        parts = (s for s in exchanges if (s.side, s.part.value) == (side, OWN))
        if own and sum(len(s.when.steps) for s in parts) < 2:
            spans[side, OWN] = own[0], own[1] - 4
    for value in ((s.side, s.name) for s in exchanges if keep):
        spans[value] = spans[value][0], 4 * loops.steps
    douts = {("q", s.name): "dout" for s in exchanges if s.tensors == ("DOUT",)}
    inputs = douts | named(
        {v: span for v, span in spans.items() if v not in douts},
        lambda v: numbered(INPUT[v[0]], f"visiting_{INPUT[v[0]]}"),
    )
    lives = sum_spans(walked, lambda cell, _: cell)
    for cell, (first, last) in lives.items():
        _, stay = walked.lasting(cell)
        within = [f for f in frames if f.loop and {*f.steps} & {first // 4} and {*f.steps} & stay]
        lives[cell] = (
            min([first, *(4 * f.steps[0] - 1 for f in within)]),  # they begin before the loop
            4 * loops.steps if cell[1] == OWN else last,
        )
    cells = named(lives, lambda c: numbered(SUMS[c[0]], f"visiting_{SUMS[c[0]]}"))
    return inputs, cells, handles(loops, frames)


def handles(loops: Loops, frames: Sequence[Frame]) -> dict[Moving, str]:
    """Names for messages that are under way: by what they carry, numbered where there are more."""
    keys, spans = dict[Moving, tuple[str, str]](), dict[tuple[str, str], tuple[int, int]]()
    for s in (s for s in loops.statements if isinstance(s, Moving)):
        during = [f for f in frames if any(map(s.when.on, f.steps))]
        end = loops.steps if late(loops, s) else during[-1].steps[-1]
        keys[s] = f"{'returning' if s.sums else 'arriving'}_{CARRIED[s.tensors[0]]}", str(len(keys))
        spans[keys[s]] = 4 * during[0].steps[0], 4 * end + 2
    names = named(spans, lambda key: numbered(key[0]))
    return {s: names[key] for s, key in keys.items()}


def late(loops: Loops, s: Moving) -> bool:
    """True if what comes is waited for where another value begins with it, and not before."""
    return isinstance(s, Send) and not s.sums and readers(loops, s) == {Start}


def readers(loops: Loops, s: Send | Exchange) -> set[type]:
    """The kinds of statements that read what a message or an exchange brings."""
    return {type(x) for x in loops.statements for p in inside(Part, x) if p.value == s.name}


def untouched(loops: Loops, s: Start, first: int) -> bool:
    """True if what begins may have its value from step `first` on: nothing has brought another."""
    steps = range(first, s.when.last)
    others = (x for x in loops.statements if isinstance(x, Start | Send) and x is not s)
    alike = (x for x in others if (x.tensors, x.name) == (s.tensors, s.name))
    brought = any(x.when.on(t) for x in alike for t in steps)
    return s.when.last == first or (s.part == Part(OWN) and not brought)
